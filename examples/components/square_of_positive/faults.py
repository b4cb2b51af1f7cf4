"""Planted faults, one a promise: each must be caught."""

from __future__ import annotations

import torch
from components.square_of_positive import square_of_positive
from torch import Tensor


def in_sixteen_bits(x: Tensor) -> Tensor:
    """The product keeps eight bits."""
    return square_of_positive(x.bfloat16()).to(x.dtype)


def of_the_magnitude(x: Tensor) -> Tensor:
    """Negatives are squared, too."""
    return x.float().square().to(x.dtype)


def takes_anything(x: Tensor) -> Tensor:
    """No check of the dtype."""
    return x.float().clamp(min=0).square().to(x.dtype if x.is_floating_point() else torch.float32)
