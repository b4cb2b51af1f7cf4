"""Softmax, the negative log-likelihood and the embedding's gradient, forward and backward, by samebits components.

Speaks aten's argument lists. Sums over rows are chains in row order; rows that are ignored add exact zeros."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from samebits.invariant.pointwise import exp
from samebits.invariant.products import backend_of
from samebits.invariant.refused import RefusedError
from samebits.invariant.sums import float32_sum


def _softmax(x: Tensor, dim: int, half_to_float: bool, logarithm: bool) -> Tensor:
    from samebits.ops.softmax import log_softmax, softmax

    backend_of(x)
    if x.dim() == 0:
        return torch.zeros_like(x) if logarithm else torch.ones_like(x)
    dtype = torch.float32 if half_to_float else None
    if x.numel() == 0:
        return torch.empty_like(x, dtype=dtype or x.dtype)
    if logarithm:
        return log_softmax(x, dim, dtype=dtype)
    rows = x.movedim(dim, -1)
    wide = rows.float()
    first = _first(exp(wide - wide.amax(-1, keepdim=True)) != 0)
    y = softmax(_shifted(rows, first, -math.inf), dtype=dtype)
    return _shifted(y, -first, 0.0).movedim(-1, dim)


def _first(seen: Tensor) -> Tensor:
    """The place of a row's first weight that is not 0.

    The lanes of a row's sum are counted from there: what a mask hides before it, such as padding on the left, moves no
    weight to another lane."""
    return seen.to(torch.int8).argmax(-1, keepdim=True)


def _shifted(rows: Tensor, first: Tensor, filling: float) -> Tensor:
    """Every row from its place `first` on, and what comes from outside of it filled."""
    if not bool(first.any()):
        return rows
    width = rows.shape[-1]
    places = torch.arange(width, device=rows.device) + first
    inside = (places >= 0) & (places < width)
    return torch.where(inside, rows.gather(-1, places.clamp(0, width - 1)), filling).to(rows.dtype)


def softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return _softmax(x, dim, half_to_float, logarithm=False)


def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return _softmax(x, dim, half_to_float, logarithm=True)


def safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """A line that sees nothing is 0 in ours anyway."""
    return softmax(x if dtype is None else x.to(dtype), dim, False)


def _softmax_backward(dy: Tensor, y: Tensor, dim: int, dtype: torch.dtype, logarithm: bool) -> Tensor:
    import samebits.ops.softmax  # noqa: F401  registers it

    backend = backend_of(y)
    if y.dim() == 0 or y.numel() == 0:
        return torch.zeros_like(y, dtype=dtype)
    shape = y.movedim(dim, -1).shape
    dy, y = dy.movedim(dim, -1), y.movedim(dim, -1)
    width, first = y.shape[-1], torch.zeros((), dtype=torch.int64) if logarithm else _first(y != 0)
    dy, y = (_shifted(each, first, 0.0).reshape(-1, width) for each in (dy.expand(y.shape), y))
    dx: Tensor = torch.ops.samebits.softmax_dx(dy, y, dtype, logarithm, backend)
    return _shifted(dx.reshape(shape), -first, 0.0).movedim(-1, dim)


def softmax_backward(dy: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    return _softmax_backward(dy, y, dim, dtype, logarithm=False)


def log_softmax_backward(dy: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    return _softmax_backward(dy, y, dim, dtype, logarithm=True)


NONE, MEAN, SUM = 0, 1, 2  # aten's numbers of the reductions


def _active(target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    if weight is not None:
        raise RefusedError("nll_loss with class weights is not offered; multiply the losses by them")
    return target != ignore_index


def nll_loss(
    logp: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """(loss, number of active rows as a float)."""
    backend_of(logp)
    active = _active(target, weight, ignore_index)
    place = torch.where(active, target, 0).unsqueeze(-1)
    losses = torch.where(active, -logp.gather(-1, place).squeeze(-1), 0.0)
    if reduction == NONE:
        return losses, logp.new_zeros(())
    count = active.sum().to(torch.float32)
    total = float32_sum(losses, None, False)
    total = total if reduction == SUM else total / count
    return total.to(logp.dtype), count.to(logp.dtype)


def nll_loss_backward(
    dloss: Tensor, logp: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, count: Tensor
) -> Tensor:
    active = _active(target, weight, ignore_index)
    place = torch.where(active, target, 0).unsqueeze(-1)
    share = dloss / active.sum().to(dloss.dtype) if reduction == MEAN else dloss
    values = torch.where(active, -share, 0.0).to(logp.dtype).unsqueeze(-1)
    return torch.zeros_like(logp).scatter_(-1, place, values)


def embedding_backward(dy: Tensor, ids: Tensor, size: int, padding_idx: int, scale_grad_by_freq: bool) -> Tensor:
    """A chain an id, over its places in the batch in order."""
    backend_of(dy)
    if scale_grad_by_freq:
        raise RefusedError("embedding with scale_grad_by_freq=True is not offered; allowed: False")
    accumulator = torch.zeros(size, dy.shape[-1], dtype=torch.float32, device=dy.device)
    resume_embedding(accumulator, dy, ids, size, padding_idx)
    return accumulator.to(dy.dtype)


def resume_embedding(accumulator: Tensor, dy: Tensor, ids: Tensor, size: int, padding_idx: int, *_: object) -> None:
    """accumulator (ids, width), contiguous <- its chains resumed with dy's rows."""
    from samebits.ops.embedding import embedding_gradient_

    exempt = padding_idx if 0 <= padding_idx < size else None
    embedding_gradient_(accumulator, ids, dy, exempt)
