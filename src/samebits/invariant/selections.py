"""Sorting and choosing with a declared rule for ties: of equal values the one with the lower index comes first.

Values are copied, so only ties could differ: in an index, and between the two zeros in a sign. NaN counts as the
largest, as in torch's sort. Knows no sums."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Selected = tuple[Tensor, Tensor]


def sort(x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> Selected:
    values, indices = torch.sort(x, stable=True, dim=dim, descending=descending)
    return values, indices


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Selected:
    """Always sorted: that is one of the orders which `sorted=False` allows."""
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    if not 0 <= k <= x.shape[dim]:
        raise RuntimeError(f"topk: k is {k}, axis {dim} of {tuple(x.shape)} is shorter; allowed: 0 to {x.shape[dim]}")
    values, indices = sort(x, dim, largest)
    return values.narrow(dim, 0, k).contiguous(), indices.narrow(dim, 0, k).contiguous()


def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Selected:
    """The k-th smallest, counted from 1."""
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    if not 1 <= k <= x.shape[dim]:
        raise RuntimeError(f"kthvalue: k is {k} for axis {dim} of {tuple(x.shape)}; allowed: 1 to {x.shape[dim]}")
    values, indices = (each.narrow(dim, k - 1, 1) for each in sort(x, dim))
    return (values, indices) if keepdim else (values.squeeze(dim), indices.squeeze(dim))


def maximum(x: Tensor, y: Tensor) -> Tensor:
    """Of equals x. On the CPU torch's vector form takes one of two zeros, and the form behind its end the other."""
    return torch.where((y > x) | y.isnan(), y, x).to(torch.result_type(x, y))


def minimum(x: Tensor, y: Tensor) -> Tensor:
    return torch.where((y < x) | y.isnan(), y, x).to(torch.result_type(x, y))


def clamp_min(x: Tensor, min: Tensor) -> Tensor:
    return maximum(x, min)


def clamp_max(x: Tensor, max: Tensor) -> Tensor:
    return minimum(x, max)


def clamp(x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    """Where the bounds cross, the upper one."""
    above = x if min is None else maximum(x, min)
    return above if max is None else minimum(above, max)


def amax(x: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Tensor:
    """A zero is +0: which of two zeros torch finds depends on strides and sizes."""
    return torch.amax(x, tuple(dim), keepdim) + 0.0


def amin(x: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Tensor:
    return torch.amin(x, tuple(dim), keepdim) + 0.0
