"""Planted faults of a run that its log must show: a rate too large, a step uphill, time that nobody times."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from samebits.model import Model
from samebits.train import lanes
from samebits.train.contracts.run_log import RATE, covered, losses
from samebits.train.trainer import Parts


def rate_a_hundredfold(text: Tensor, counts: Tensor, steps: Tensor) -> Tensor:
    """A rate a hundred times too large."""
    return losses(text, counts, steps, rate=100 * RATE)


def _uphill(model: Model, examples: list[lanes.Example], cut: lanes.Cut) -> lanes.Backward:
    found = lanes.backward(model, examples, cut)
    return replace(found, gradients={name: -gradient for name, gradient in found.gradients.items()})


def climbs(text: Tensor, counts: Tensor, steps: Tensor) -> Tensor:
    """Every gradient has the wrong sign."""
    return losses(text, counts, steps, parts=Parts(backward=_uphill))


class _Waits:
    """Keeps the trainer waiting, outside of its parts, for a tenth of what the step before took."""

    def __init__(self) -> None:
        self.last = time.perf_counter()

    def __call__(self, step: int, gradients: Mapping[str, Tensor]) -> None:
        now = time.perf_counter()
        whole, self.last = now - self.last, now
        time.sleep(whole / 10)


def a_tenth_that_nobody_times(text: Tensor, counts: Tensor, weights: Tensor, steps: Tensor) -> Tensor:
    """A tenth of each step belongs to no part."""
    return covered(text, counts, weights, steps, observer=_Waits())
