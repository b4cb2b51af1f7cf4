"""Small distillations for tests: a teacher of bytes in a folder, and the small run with it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from tests.train.small_run import TEXT

from samebits.model import Model
from samebits.model.config import ModelConfig
from samebits.model.huggingface import save_folder
from samebits.model.tokenizer import Tokenizer
from samebits.parallel.grid import Grid
from samebits.parallel.world import World
from samebits.train.distill_configuration import DistillConfig, read_text
from samebits.train.distill_running import distill, prepare
from samebits.train.running import Summary

SHAPE = ModelConfig(
    vocab_size=272,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=96,
    max_position_embeddings=128,
)
# Four updates of eight short sequences.
SHORT = ("training.max_steps=4", "training.save_steps=2", "training.lanes=4", "data.max_train_samples=6")


@cache
def teacher(seed: int = 7, scale: float = 8.0) -> str:
    """A folder with a teacher that has opinions: its embedding is larger than training begins with."""
    folder = Path(mkdtemp(prefix="teacher-")) / "teacher"
    model = Model.new(SHAPE, seed)
    model.weights["model.embed_tokens.weight"] = model.weights["model.embed_tokens.weight"] * scale
    save_folder(model, folder, Tokenizer.of_bytes())
    return str(folder)


def text(folder: str | None = None) -> str:
    named = f"teacher_model_name_or_path: {folder or teacher()}"
    return f"{TEXT}\ndistillation: {{{named}, temperature: 2.0, alpha: 0.5}}\n"


def small(*settings: str, folder: str | None = None) -> DistillConfig:
    return read_text(text(folder), (*SHORT, *settings))


def cut(micro_batch: int, collation: str = "packed") -> tuple[str, ...]:
    return (
        f"training.micro_batch_size={micro_batch}",
        f"training.gradient_accumulation_steps={8 // micro_batch}",
        f"training.collation={collation}",
    )


def distilled(
    world: World, out: str, settings: tuple[str, ...] = (), folder: str | None = None, resume: bool = False
) -> Summary:
    """A run on some ranks."""
    return distill(prepare(small(*settings, folder=folder)), Path(out), grid=Grid(world=world), resume=resume)
