"""Sorting and choosing with a declared rule for ties: of equal values the one with the lower index comes first.

Values are copied, so only ties could differ. NaN counts as the largest, as in torch's sort. Knows no sums."""

from __future__ import annotations

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
