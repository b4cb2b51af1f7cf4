"""Planted faults of checkpoints: an order of chance, a seed unheard, state that is lost, a file written over."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

from samebits.model import Model
from samebits.train import checkpoint, lanes
from samebits.train.contracts.checkpoint import files_after, held, position, resumed, state_after, write
from samebits.train.trainer import MOMENTS, Parts, Trainer

_runs = count()


def order_of_chance(text: Tensor, counts: Tensor, weights: Tensor, steps: Tensor, seed: Tensor) -> Tensor:
    """Every second run goes through the sequences of an update the other way round: as a set would have them."""
    turned = next(_runs) % 2 == 1

    def backward(model: Model, examples: list[lanes.Example], cut: lanes.Cut) -> lanes.Backward:
        return lanes.backward(model, examples[::-1] if turned else examples, cut)

    return state_after(text, counts, weights, steps, seed, parts=Parts(backward=backward))


def seed_ignored(text: Tensor, counts: Tensor, weights: Tensor, steps: Tensor, seed: Tensor) -> Tensor:
    """Every run has the seed of the first."""
    return state_after(text, counts, weights, steps, torch.tensor([42]))


def _moments_lost(trainer: Trainer, folder: Path) -> None:
    found = checkpoint.read(folder)
    zeros = {name: torch.zeros_like(each) for name, each in found.optimizer.items()}
    trainer.restore(replace(found, optimizer=zeros))


def moments_not_saved(text: Tensor, counts: Tensor, weights: Tensor, steps: Tensor, seed: Tensor) -> Tensor:
    """The optimizer begins with moments of zero."""
    return resumed(text, counts, weights, steps, seed, load=_moments_lost)


def _count_lost(trainer: Trainer, folder: Path) -> None:
    trainer.restore(checkpoint.read(folder))
    for state in trainer.optimizer.state.values():
        state["step"] = 0


def step_starts_anew(text: Tensor, counts: Tensor, weights: Tensor, steps: Tensor, seed: Tensor) -> Tensor:
    """The optimizer counts from its first step again."""
    return resumed(text, counts, weights, steps, seed, load=_count_lost)


def _without_squares(trainer: Trainer, folder: Path) -> Path:
    kept = trainer.state()
    assert kept is not None  # one rank keeps everything
    half = {name: each for name, each in kept["optimizer"].items() if name.startswith(f"{MOMENTS[0]}.")}
    return checkpoint.write(folder, trainer.done, **{**kept, "optimizer": half})


def squares_not_saved(layers: Tensor, seed: Tensor) -> Tensor:
    """One of the two moments is left out."""
    return held(layers, seed, keep=_without_squares)


def data_starts_anew(steps: Tensor, sequences: Tensor, batch: Tensor, *, moved: int = 0) -> Tensor:
    """A resumed run begins with the first sequence, whatever the checkpoint says."""
    return torch.zeros_like(position(steps, sequences, batch))


def any_position_is_taken(steps: Tensor, sequences: Tensor, batch: Tensor, *, moved: int = 0) -> Tensor:
    """What the checkpoint says of its position is not compared."""
    return position(steps, sequences, batch)


def _overwrites(trainer: Trainer, folder: Path) -> None:
    trainer.restore(checkpoint.read(folder))
    before = trainer.done
    trainer.step()
    shutil.rmtree(folder / f"step-{before:08d}")
    trainer.done = before
    write(trainer, folder)


def file_overwritten(text: Tensor, counts: Tensor, weights: Tensor, steps: Tensor, seed: Tensor) -> Tensor:
    """What comes next is kept under the name of what was resumed from."""
    return files_after(text, counts, weights, steps, seed, go=_overwrites)
