"""Small runs for tests: a configuration in a line or two, a trainer of it, and the digest of what it became."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from samebits.model import Model
from samebits.train import checkpoint, events
from samebits.train.assessment import data_of, model_of
from samebits.train.configuration import TrainConfig
from samebits.train.configuration_file import read_text
from samebits.train.trainer import Parts, Trainer

ROOT = Path(__file__).resolve().parents[2]
# Two layers on bytes of a few files: a step takes milliseconds. Documents apart, so that lengths differ.
TEXT = """
model:
  preset: tiny
  overrides: {vocab_size: 272, hidden_size: 48, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2,
              head_dim: 16, intermediate_size: 80}
data: {source: stdlib, max_length: 48, max_train_samples: 30, documents: apart}
optimizer:
  {lr: 1e-2, warmup_steps: 1, min_lr_ratio: 0.1, beta1: 0.9, beta2: 0.95, weight_decay: 0.1, max_grad_norm: 1.0}
training:
  {seed: 42, micro_batch_size: 2, gradient_accumulation_steps: 4, num_train_epochs: 1, max_steps: 10,
   max_repeats: 1, save_steps: 5, waive: [CFG-OB7]}
monitoring: {peak_flops: 1e12}
"""
# The tiny preset itself, its words those of bytes.
TINY = (
    "model.overrides={vocab_size: 272}",
    "data={source: stdlib, max_length: 32, max_train_samples: 40}",
    "training.max_steps=100",
    "training.micro_batch_size=4",
    "training.gradient_accumulation_steps=1",
    "optimizer.lr=3e-3",
    "optimizer.warmup_steps=10",
    "training.save_steps=50",
)


def small(*settings: str) -> TrainConfig:
    return read_text(TEXT, settings)


def trainer_of(config: TrainConfig, parts: Parts | None = None, model: Model | None = None) -> Trainer:
    return Trainer(config, model or model_of(config), data_of(config), parts or Parts())


def digest_after(config: TrainConfig, steps: int, folder: Path, parts: Parts | None = None) -> str:
    """The digest of the checkpoint after so many steps."""
    trainer = trainer_of(config, parts)
    for _ in range(steps):
        trainer.step()
    return checkpoint.digest(checkpoint.write(folder, trainer.done, **trainer.state()))


def steps_of(folder: Path) -> list[dict[str, Any]]:
    return [event for event in events.read(folder) if event["event"] == "step"]


def average(losses: list[float], window: int) -> list[float]:
    """Exponential moving average, from the first loss."""
    found = losses[:1]
    for loss in losses[1:]:
        found.append(found[-1] + 2 / (window + 1) * (loss - found[-1]))
    return found


def rises(losses: list[float], after: int = 0, window: int = 100, horizon: int = 500) -> bool:
    """Whether the average ever rises by more than 5 % within the horizon, after so many steps.

    It is averaged from the first step on: begun at a later one it would be that one loss, which wanders by more."""
    smooth = average(losses, window)[after:]
    return any(late > 1.05 * min(smooth[max(0, place - horizon) : place + 1]) for place, late in enumerate(smooth))
