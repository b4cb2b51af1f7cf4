"""Small runs for tests: a configuration in a line or two, a trainer of it, and the digest of what it became."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from samebits.model import Model
from samebits.train import checkpoint, events
from samebits.train.configuration import Configuration, read_text
from samebits.train.planning import data_of, model_of
from samebits.train.trainer import Parts, Trainer

ROOT = Path(__file__).resolve().parents[2]
# Two layers on bytes of a few files: a step takes milliseconds. Documents apart, so that lengths differ.
TEXT = """
model:
  preset: tiny
  overrides: {vocabulary: 272, hidden: 48, layers: 2, heads: 4, key_heads: 2, head_size: 16, intermediate: 80}
data: {source: stdlib, length: 48, limit: 30, documents: apart}
optimizer:
  {peak_rate: 1e-2, warmup: 1, floor_ratio: 0.1, beta1: 0.9, beta2: 0.95, weight_decay: 0.1, max_norm: 1.0}
training:
  {seed: 42, micro_batch: 2, accumulation: 4, epochs: 1, max_steps: 10, max_repeats: 1, checkpoint_every: 5,
   waive: [CFG-OB7]}
monitoring: {peak_flops: 1e12}
"""
# The tiny preset itself, its words those of bytes.
TINY = (
    "model.overrides={vocabulary: 272}", "data={source: stdlib, length: 32, limit: 40}", "training.max_steps=100",
    "training.micro_batch=4", "training.accumulation=1", "optimizer.peak_rate=3e-3", "optimizer.warmup=10",
    "training.checkpoint_every=50",
)  # fmt: skip


def small(*settings: str) -> Configuration:
    return read_text(TEXT, settings)


def trainer_of(config: Configuration, parts: Parts | None = None, model: Model | None = None) -> Trainer:
    return Trainer(config, model or model_of(config), data_of(config), parts or Parts())


def digest_after(config: Configuration, steps: int, folder: Path, parts: Parts | None = None) -> str:
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


def rises(losses: list[float], window: int = 100, horizon: int = 500) -> bool:
    """Whether the average ever rises by more than 5 % within the horizon."""
    smooth = average(losses, window)
    return any(late > 1.05 * min(smooth[max(0, place - horizon) : place + 1]) for place, late in enumerate(smooth))
