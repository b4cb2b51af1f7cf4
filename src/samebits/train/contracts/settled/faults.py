"""Planted faults of settings: what fixes the order of sums is set by a run that is already under way."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from samebits.parallel.schedules import Lanes
from samebits.train.contracts.settled import BATCH, moved
from samebits.train.trainer import Trainer


def _turn_deterministic(trainer: Trainer) -> None:
    torch.use_deterministic_algorithms(not torch.are_deterministic_algorithms_enabled())


def deterministic_afterwards(text: Tensor, counts: Tensor, weights: Tensor, steps: Tensor) -> Tensor:
    """torch's deterministic algorithms are switched after the first step."""
    before = torch.are_deterministic_algorithms_enabled()
    try:
        return moved(text, counts, weights, steps, late=_turn_deterministic)
    finally:
        torch.use_deterministic_algorithms(before)


def _cut_anew(trainer: Trainer) -> None:
    trainer.cut = replace(trainer.cut, lanes=Lanes(lanes=BATCH, sequences=1))


def lanes_afterwards(text: Tensor, counts: Tensor, weights: Tensor, steps: Tensor) -> Tensor:
    """The chains of the gradient's sum, one for both sequences, become one for each after the first step."""
    return moved(text, counts, weights, steps, late=_cut_anew)
