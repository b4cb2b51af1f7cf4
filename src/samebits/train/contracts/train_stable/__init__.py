"""A run of the trainer on one short text, with a log of what each step did; what stops the run is in it as no number.

The learning rate goes from its peak to a tenth of it over the steps, as the schedule has it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from samebits.train.contracts.small_run import MAX_NORM, config_of, trainer_of
from samebits.train.trainer import OURS, Parts, Trainer
from samebits.train.watch import BreachError

LOGGED = ("loss", "norm before clipping", "norm after clipping", "largest weight")

__all__ = ["LOGGED", "MAX_NORM", "run_of", "training_log"]


def run_of(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor, parts: Parts = OURS) -> Trainer:
    """One sequence, seen once a step."""
    targets = len(text) - 1
    config = config_of(1, 1, float(rate), int(steps), width=targets, device=str(weights.device))
    return trainer_of(config, text[None].cpu(), torch.tensor([targets]), weights, parts)


def training_log(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor, *, parts: Parts = OURS) -> Tensor:
    """(steps, 4) float64: loss, norm before and after clipping, largest weight, of each step.

    Where the trainer stopped the run, that step and all that would have followed are NaN."""
    trainer = run_of(text, weights, rate, steps, parts)
    log = torch.full((int(steps), len(LOGGED)), math.nan, dtype=torch.float64)
    for line in log:
        try:
            done = trainer.step()
        except BreachError:
            break
        line.copy_(torch.tensor([done.loss, done.norm, done.norm_after, _largest(trainer)], dtype=torch.float64))
    return log


def _largest(trainer: Trainer) -> float:
    return max(float(weight.abs().amax()) for weight in trainer.weights.values())
