"""Planted faults of settings on a device: what fixes the order of sums is set by a run that is already under way."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from samebits.parallel.schedules import Lanes
from samebits.train.contracts.settled import BATCH
from samebits.train.contracts.settled_gpu import moved_on_device
from samebits.train.trainer import Trainer


def _turn_cudnn(trainer: Trainer) -> None:
    torch.backends.cudnn.deterministic = not torch.backends.cudnn.deterministic


def cudnn_afterwards(text: Tensor, counts: Tensor, weights: Tensor, steps: Tensor) -> Tensor:
    """cuDNN's deterministic algorithms are switched after the first step."""
    before = torch.backends.cudnn.deterministic
    try:
        return moved_on_device(text, counts, weights, steps, late=_turn_cudnn)
    finally:
        torch.backends.cudnn.deterministic = before


def _cut_anew(trainer: Trainer) -> None:
    trainer.cut = replace(trainer.cut, lanes=Lanes(lanes=BATCH, sequences=1))


def lanes_afterwards(text: Tensor, counts: Tensor, weights: Tensor, steps: Tensor) -> Tensor:
    """The chains of the gradient's sum, one for both sequences, become one for each after the first step."""
    return moved_on_device(text, counts, weights, steps, late=_cut_anew)


def on_the_host_instead(text: Tensor, counts: Tensor, weights: Tensor, steps: Tensor) -> Tensor:
    """Nothing moves, and nothing runs on the device."""
    return moved_on_device(text, counts, weights.cpu(), steps)
