"""Student's t-test for pairs, one-sided: how likely gains as large as these are if there are none."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# Intervals of Simpson's rule from 0 to |t|; far more than the fourth digit of p needs.
INTERVALS = 2000


def p_of_smaller(before: Sequence[float], after: Sequence[float]) -> float:
    """Small where `after` is smaller than `before`, pair by pair. No variance is no evidence."""
    gains = [left - right for left, right in zip(before, after, strict=True)]
    mean = math.fsum(gains) / len(gains)
    variance = math.fsum((gain - mean) ** 2 for gain in gains) / (len(gains) - 1)
    if variance == 0.0:
        return 1.0
    return upper_tail(mean / math.sqrt(variance / len(gains)), len(gains) - 1)


def upper_tail(t: float, freedom: int) -> float:
    """P(T > t) of Student's t."""
    scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
    step = abs(t) / INTERVALS

    def density(x: float) -> float:
        return scale * math.pow(1 + x * x / freedom, -(freedom + 1) / 2)

    inner = math.fsum((4 if place % 2 else 2) * density(place * step) for place in range(1, INTERVALS))
    half = step / 3 * (density(0.0) + inner + density(abs(t)))
    return 0.5 - half if t >= 0 else 0.5 + half


def p64(losses: Tensor) -> Tensor:
    """Of losses without and with a teacher."""
    without, taught = losses.tolist()
    return torch.tensor([p_of_smaller(without, taught)], dtype=torch.float64)
