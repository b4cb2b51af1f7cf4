"""Values added at places that an index names, and running sums: chains in the order in which they stand.

Speaks aten's argument lists. A place's chain starts from what is there and takes its terms in row-major order of the
index, in float32, rounded once at the end. No atomics, and no place is met in the order of arrival."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from samebits.invariant.products import backend_of
from samebits.invariant.refused import RefusedError


def _added(x: Tensor, places_M: Tensor, rows_MW: Tensor) -> Tensor:
    """x, seen as (places, W), with rows added at places."""
    from samebits.ops.embedding import embedding_gradient_

    backend_of(x)
    width = rows_MW.shape[1]
    accumulator = x.float().clone(memory_format=torch.contiguous_format)
    if rows_MW.numel():
        embedding_gradient_(accumulator.view(-1, width), places_M, rows_MW.contiguous())
    return accumulator.to(x.dtype)


def index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """With accumulate only: axes behind the last index are rows that are added whole."""
    if not accumulate:
        raise RefusedError("with two values for one place the winner is not fixed; use gather or where")
    led = sum(index.dim() if index is not None and index.dtype == torch.bool else 1 for index in indices)
    places = torch.arange(math.prod(x.shape[:led]), device=x.device).reshape(x.shape[:led])
    places = places[tuple(slice(None) if index is None else index for index in indices)]
    width = math.prod(x.shape[led:])
    rows = values.to(x.dtype).expand(*places.shape, *x.shape[led:]).reshape(places.numel(), width)
    return _added(x, places.reshape(-1), rows)


def index_put_impl(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, unsafe: bool = False
) -> Tensor:
    return index_put(x, indices, values, accumulate)


def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    if x.dim() == 0:
        return index_add(x.reshape(1), 0, index.reshape(-1), source.reshape(-1), alpha=alpha).reshape(())
    first, rows = x.movedim(dim, 0), source.movedim(dim, 0)
    rows = rows if alpha == 1 else rows * alpha
    width = math.prod(first.shape[1:])
    index = index.reshape(-1).long()
    return _added(first, index, rows.reshape(len(index), width)).reshape(first.shape).movedim(0, dim)


def scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    if index.numel() == 0:
        return x.clone()
    if x.dim() == 0:
        return scatter_add(x.reshape(1), 0, index.reshape(1), source.reshape(1)).reshape(())
    places = torch.arange(x.numel(), device=x.device).reshape(x.shape)
    places = places[tuple(slice(None) if a == dim % x.dim() else slice(size) for a, size in enumerate(index.shape))]
    given = source[tuple(slice(size) for size in index.shape)]
    return _added(x, places.gather(dim, index).reshape(-1), given.reshape(-1, 1))


def cumsum(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """One running chain a line, in float32; numpy's accumulate is one addition after the other. On the CPU always."""
    x = x if dtype is None else x.to(dtype)
    if not x.is_floating_point():
        return torch.cumsum(x, dim)
    backend_of(x)
    if x.dim() == 0:
        return x.clone()
    lines = x.detach().float().cpu().numpy()
    return torch.from_numpy(np.add.accumulate(lines, axis=dim, dtype=np.float32)).to(x.device, x.dtype)
