"""Planted faults of the softmax: each breaks one promise, and the check of that promise must say so."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops.softmax import softmax


def forgets_the_maximum(x: Tensor) -> Tensor:
    """Breaks accuracy: large numbers overflow."""
    e = x.exp()
    return e / e.sum(-1, keepdim=True)


def quick_reciprocal(x: Tensor) -> Tensor:
    """Breaks accuracy: the sum's reciprocal has sixteen bits of significand."""
    return softmax(x) * (1 + 2.0**-16)


def log_of_the_softmax(x: Tensor) -> Tensor:
    """Breaks accuracy: what softmax rounds to zero has no logarithm."""
    return torch.log(softmax(x))


def loses_the_last_tile(x: Tensor) -> Tensor:
    """Breaks the sum: elements past the last whole tile of 16 are left out of it."""
    kept = x.shape[-1] // 16 * 16
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e[..., :kept].sum(-1, keepdim=True)


def misses_the_last_maximum(x: Tensor) -> Tensor:
    """Breaks the interval: the maximum is taken over all but the last element."""
    m = x[..., :-1].amax(-1, keepdim=True) if x.shape[-1] > 1 else x
    e = (x.float() - m.float()).exp()
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


def exponent_turned_round(x: Tensor) -> Tensor:
    """Breaks the order: exp(m - x)."""
    return softmax(-x)


def log_without_the_maximum(x: Tensor) -> Tensor:
    """Breaks log_softmax <= 0: the sum is rounded to 16 bits before the logarithm."""
    total = x.float().exp().sum(-1, keepdim=True).bfloat16().float()
    return (x.float() - total.log()).to(x.dtype)


def takes_any_dtype(x: Tensor, dim: int = -1, **options: object) -> Tensor:
    """Breaks the refusal: what has no declared order is turned into float32."""
    return softmax(x if x.dtype in (torch.bfloat16, torch.float16) else x.to(torch.float32), dim)
