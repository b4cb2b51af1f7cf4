"""Planted faults of the softmax: each breaks one promise, and the check of that promise must say so."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from samebits.ops.launching import forced
from samebits.ops.softmax import log_softmax, softmax

_calls = itertools.count()


def _turned(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The same row rotated by one: other lanes meet, right within rounding, other bits."""
    return function(x.roll(1, -1)).roll(-1, -1)


def _launch_is_plain() -> bool:
    return forced("threads") in (None, 1) and forced("launch") is None


def split_by_batch(x: Tensor) -> Tensor:
    """Breaks batch and chunk: more rows, another order."""
    return softmax(x) if x.shape[0] > 8 else _turned(softmax, x)


def other_order_every_time(x: Tensor) -> Tensor:
    """Breaks repeat: as atomics do."""
    return softmax(x) if next(_calls) % 2 else _turned(softmax, x)


def one_maximum_for_all_rows(x: Tensor) -> Tensor:
    """Breaks padding: the maximum of the whole batch is subtracted, so a NaN in one row reaches the others."""
    return softmax(x - x.amax().detach())


def tile_decides_order(x: Tensor) -> Tensor:
    """Breaks tile: the number of threads or warps shapes the row's tree, as a bare sum over a tile does."""
    return softmax(x) if _launch_is_plain() else _turned(softmax, x)


def forgets_the_maximum(x: Tensor) -> Tensor:
    """Breaks accuracy: large numbers overflow."""
    e = x.exp()
    return e / e.sum(-1, keepdim=True)


def quick_reciprocal(x: Tensor) -> Tensor:
    """Breaks accuracy: the sum's reciprocal has sixteen bits of significand."""
    return softmax(x) * (1 + 2.0**-16)


def other_order_on_cuda(x: Tensor) -> Tensor:
    """Breaks device: the accelerator folds other lanes."""
    return _turned(softmax, x) if x.is_cuda else softmax(x)


def log_split_by_batch(x: Tensor) -> Tensor:
    """Breaks batch: more rows, another order."""
    return log_softmax(x) if x.shape[0] > 8 else _turned(log_softmax, x)


def log_one_maximum_for_all_rows(x: Tensor) -> Tensor:
    """Breaks padding: the maximum of the whole batch is subtracted, so a NaN in one row reaches the others."""
    return log_softmax(x - x.amax().detach())


def log_tile_decides_order(x: Tensor) -> Tensor:
    """Breaks tile: a launch number shapes the row's tree."""
    return log_softmax(x) if _launch_is_plain() else _turned(log_softmax, x)


def log_of_the_softmax(x: Tensor) -> Tensor:
    """Breaks accuracy: what softmax rounds to zero has no logarithm."""
    return torch.log(softmax(x))


def log_other_order_on_cuda(x: Tensor) -> Tensor:
    """Breaks device: the accelerator folds other lanes."""
    return _turned(log_softmax, x) if x.is_cuda else log_softmax(x)


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
