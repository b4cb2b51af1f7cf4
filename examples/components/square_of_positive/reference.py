"""The equation in float64."""

from __future__ import annotations

from torch import Tensor


def square_of_positive64(x: Tensor) -> Tensor:
    return x.double().clamp(min=0).square()
