"""Planted faults of a log: prints, a rate that was not applied, a NaN that is hidden, tokens counted with padding."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import Tensor
from torch.optim import Optimizer

from samebits.model import Model
from samebits.model.batch import ALIGNMENT
from samebits.ops.adamw import AdamW
from samebits.train import lanes
from samebits.train.configuration import OptimizerSection
from samebits.train.contracts.observability import RATE, log_and_truth, lost_run, printed, speeds
from samebits.train.trainer import Parts, clipped, made


def _clips_aloud(gradients: list[Tensor], norm: Tensor, max_norm: float) -> None:
    clipped(gradients, norm, max_norm)
    sys.stdout.writelines([f"norm {float(norm)}\n"])


def prints_as_it_runs(text: Tensor, counts: Tensor, steps: Tensor) -> Tensor:
    """Each clipping shows its norm."""
    return printed(text, counts, steps, parts=Parts(clip=_clips_aloud))


def a_print_left_in(text: Tensor, counts: Tensor, steps: Tensor) -> Tensor:
    """A module has a print that no run comes by."""
    return printed(text, counts, steps, more="def rarely():\n    print('here')\n")


def _at_the_peak(used: Optimizer, *_: object) -> None:
    for group in used.param_groups:
        group["lr"] = RATE


def _halved_again(used: Optimizer, *_: object) -> None:
    for group in used.param_groups:
        for weight in group["params"]:
            weight.grad.mul_(0.5)


def _made_with(hook: Callable[..., None], weights: dict[str, Tensor], section: OptimizerSection) -> AdamW:
    """The trainer's optimizer, in which something happens right before an update, after the log was told."""
    found = made(weights, section)
    found.register_step_pre_hook(hook)
    return found


def rate_of_the_configuration(text: Tensor, counts: Tensor, steps: Tensor) -> Tensor:
    """The optimizer applies the configured peak; the log says what the schedule told it."""
    return log_and_truth(text, counts, steps, optimizer=partial(_made_with, _at_the_peak))


def clipped_behind_the_log(text: Tensor, counts: Tensor, steps: Tensor) -> Tensor:
    """The optimizer halves the gradients whose norm is in the log."""
    return log_and_truth(text, counts, steps, optimizer=partial(_made_with, _halved_again))


def nan_is_hidden(text: Tensor, counts: Tensor, steps: Tensor, at: Tensor) -> Tensor:
    """A loss that is no number is logged as one, and the run goes on."""
    return lost_run(text, counts, steps, at, loss=0.0)


def _counts_padding(model: Model, examples: list[lanes.Example], cut: lanes.Cut) -> lanes.Backward:
    rows = sum(-(-len(targets) // ALIGNMENT) * ALIGNMENT for _, targets in examples)
    return replace(lanes.backward(model, examples, cut), targets=rows)


def padding_is_counted(text: Tensor, counts: Tensor, steps: Tensor) -> Tensor:
    """Targets are those of the filled-up rows."""
    return speeds(text, counts, steps, parts=Parts(backward=_counts_padding))
