"""How far float32 may carry a model's logits, found in float64: every operator's result is off by its own bound.

Signs are drawn, so that errors add up as errors do. Knows no kernel; the bounds are those of the declared orders."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from samebits.contracts.orders import sum_error
from samebits.model.contracts.specs import fractions
from samebits.ops.rmsnorm.check import statistic_error
from samebits.ops.rounding import FLOAT32_ROUNDOFF

DRAWS = 2
"""The larger effect of two is allowed, without a factor: bounds are worst cases, and real errors a few percent."""


class Exact:
    """Nothing is rounded."""

    def sum(self, value: Tensor, magnitude: Tensor, terms: int) -> Tensor:
        """A sum of so many terms, of which the magnitudes add up to `magnitude`."""
        return value

    def norm(self, value: Tensor, width: int) -> Tensor:
        """A root mean square's quotient."""
        return value

    def elements(self, value: Tensor, magnitude: Tensor, roundings: int) -> Tensor:
        """Element by element, so many roundings of numbers of this magnitude."""
        return value


@dataclass(slots=True)
class Drawn(Exact):
    """Each result is off by its bound, up or down."""

    seed: int
    calls: int = field(default=0)

    def sum(self, value: Tensor, magnitude: Tensor, terms: int) -> Tensor:
        return self._off(value, magnitude * sum_error("chain-1", terms))

    def norm(self, value: Tensor, width: int) -> Tensor:
        relative = statistic_error(width, lambda terms: sum_error("lanes-256", terms)) + 2 * FLOAT32_ROUNDOFF
        return self._off(value, value.abs() * relative)

    def elements(self, value: Tensor, magnitude: Tensor, roundings: int) -> Tensor:
        return self._off(value, magnitude * (roundings * FLOAT32_ROUNDOFF))

    def _off(self, value: Tensor, bound: Tensor) -> Tensor:
        self.calls += 1
        up = torch.from_numpy(fractions(tuple(value.shape), 1000 * self.seed + self.calls) < 0.5).to(value.device)
        return value + torch.where(up, bound, -bound)
