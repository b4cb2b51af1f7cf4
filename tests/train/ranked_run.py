"""A run of the tiny preset on real ranks, for tests: one configuration, any grid, any cut, any moment of death."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

from tests.train.small_run import TEXT

from samebits.model import Model
from samebits.parallel.grid import Grid
from samebits.parallel.world import World
from samebits.train import lanes
from samebits.train.configuration import TrainConfig
from samebits.train.configuration_file import read_text
from samebits.train.running import Summary, run
from samebits.train.trainer import OURS, Parts

# The preset itself; its words are bytes. Sixteen short sequences an update, two a lane; eight updates.
PRESET = (
    "model.overrides={vocab_size: 272}",
    "data={source: stdlib, max_length: 16, max_train_samples: 12}",
    "optimizer.warmup_steps=1",
    "optimizer.lr=3e-3",
    "training.lanes=8",
    "training.max_steps=8",
    "training.save_steps=4",
    "monitoring.compare_steps=1",
)

LONGER = ("training.max_steps=20", "training.save_steps=5")


def configuration(micro_batch: int, *settings: str) -> TrainConfig:
    cut = (f"training.micro_batch_size={micro_batch}", f"training.gradient_accumulation_steps={16 // micro_batch}")
    return read_text(TEXT, (*PRESET, *cut, *settings))


def trained(
    world: World,
    folder: str,
    tensor: int,
    micro_batch: int,
    settings: tuple[str, ...] = (),
    resume: bool = False,
    parts: Parts = OURS,
) -> Summary:
    config = configuration(micro_batch, *settings)
    return run(config, Path(folder), grid=Grid(world=world, tensor=tensor), resume=resume, parts=parts)


def dying(world: World, folder: str, tensor: int, victim: int, step: int, seconds: float) -> Summary:
    """The same, in which one rank dies by SIGKILL a moment after it has begun a step of this process."""
    seen = 0

    def backward(model: Model, examples: list[lanes.Example], cut: lanes.Cut) -> lanes.Backward:
        nonlocal seen
        seen += 1
        if seen == step:
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return lanes.backward(model, examples, cut)

    parts = replace(OURS, backward=backward) if world.rank == victim else OURS
    return trained(world, folder, tensor, 2, LONGER, True, parts)
