"""Planted faults of a log: prints, a rate that was not applied, a NaN that is hidden, tokens counted with padding."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from samebits.model.batch import ALIGNMENT
from samebits.train.contracts.observability import BATCH, LOGGED, RATE, log_and_truth, lost_run, printed, speeds
from samebits.train.trainer import Parts, clipped


def _clips_aloud(gradients: list[Tensor], norm: Tensor, max_norm: float) -> None:
    clipped(gradients, norm, max_norm)
    sys.stdout.writelines([f"norm {float(norm)}\n"])


def prints_as_it_runs(text: Tensor, counts: Tensor, steps: Tensor) -> Tensor:
    """Each clipping shows its norm."""
    return printed(text, counts, steps, parts=Parts(clip=_clips_aloud))


def a_print_left_in(text: Tensor, counts: Tensor, steps: Tensor) -> Tensor:
    """A module has a print that no run comes by."""
    return printed(text, counts, steps, more="def rarely():\n    print('here')\n")


def rate_of_the_configuration(text: Tensor, counts: Tensor, steps: Tensor) -> Tensor:
    """The log says the peak, whatever the schedule applied."""
    found = log_and_truth(text, counts, steps)
    found[0, :, LOGGED.index("rate")] = RATE
    return found


def norm_after_clipping_twice(text: Tensor, counts: Tensor, steps: Tensor) -> Tensor:
    """The log has the norm before clipping in both places."""
    found = log_and_truth(text, counts, steps)
    found[0, :, LOGGED.index("norm_after")] = found[0, :, LOGGED.index("norm")]
    return found


def nan_is_hidden(text: Tensor, counts: Tensor, steps: Tensor, at: Tensor) -> Tensor:
    """A loss that is no number is logged as one, and the run goes on."""
    return lost_run(text, counts, steps, at, hides=True)


def padding_is_counted(text: Tensor, counts: Tensor, steps: Tensor) -> Tensor:
    """Tokens are those of the filled-up rows."""
    rows = -(-(text.shape[1] - 1) // ALIGNMENT) * ALIGNMENT
    return torch.full_like(speeds(text, counts, steps), BATCH * rows)
