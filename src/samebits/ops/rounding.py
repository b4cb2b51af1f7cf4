"""Error bounds of float32 arithmetic that is stored in a narrower format: derived, element by element.

Knows no operator. A bound counts the error of the sum, every later rounding, the final one, and underflow."""

from __future__ import annotations

import torch
from torch import Tensor

FLOAT32_ROUNDOFF = 2.0**-24
FLOAT32_TINY = 2.0**-149
FLOAT64_ROUNDOFF = 2.0**-53


def allowed_error(
    exact: Tensor, magnitude: Tensor, sum_error: float, terms: int, roundings: int, dtype: torch.dtype
) -> Tensor:
    """How far a correct kernel may be from `exact`, a sum in float64 whose terms' magnitudes add to `magnitude`.

    sum_error: relative to magnitude; terms: how many, for underflow and for float64's own error; roundings: float32
    operations after the sum. The last rounding is to `dtype`; beyond its largest number anything is allowed."""
    relative = (1 + sum_error) * (1 + FLOAT32_ROUNDOFF) ** roundings - 1 + 2 * terms * FLOAT64_ROUNDOFF
    before = magnitude * relative + (terms + roundings + 1) * FLOAT32_TINY
    information = torch.finfo(dtype)
    half_ulp = 0.0 if dtype == torch.float32 else information.eps / 2
    smallest = 0.0 if dtype == torch.float32 else information.smallest_normal * information.eps
    allowed = before + half_ulp * (exact.abs() + before) + smallest
    return torch.where(exact.abs() + allowed > information.max, torch.inf, allowed)
