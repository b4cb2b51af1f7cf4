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
    seen = _behind_gaps(exp(wide - wide.amax(-1, keepdim=True)) != 0)
    y = softmax(_gathered(rows, seen, -math.inf), dtype=dtype)
    return _spread(y, seen).movedim(-1, dim)


def _behind_gaps(seen: Tensor) -> Tensor | None:
    """`seen`, if some row has a weight behind a place without one; None: every weight lies where it is summed."""
    return seen if bool((seen[..., 1:] & ~seen[..., :-1]).any()) else None


def _gathered(rows: Tensor, seen: Tensor | None, filling: float) -> Tensor:
    """What is seen of every row, side by side at its beginning, and behind it `filling`.

    The lanes of a row's sum are counted over its weights alone: what a mask hides before or between them (padding on
    the left; padding between the keys and an attention sink) moves no weight to another lane."""
    if seen is None:
        return rows
    width = rows.shape[-1]
    # What is not seen goes to one place more, which is cut off.
    places = torch.where(seen, seen.cumsum(-1) - 1, width)
    gathered = rows.new_full((*rows.shape[:-1], width + 1), filling)
    return gathered.scatter_(-1, places, rows)[..., :width].contiguous()


def _spread(rows: Tensor, seen: Tensor | None) -> Tensor:
    """What was gathered, at its own places again, and 0 elsewhere."""
    if seen is None:
        return rows
    places = (seen.cumsum(-1) - 1).clamp(min=0)
    return torch.where(seen, rows.gather(-1, places), 0.0).to(rows.dtype)


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
    y, width = y.movedim(dim, -1), y.shape[dim]
    shape, dy = y.shape, dy.movedim(dim, -1).expand(y.shape)
    # The gradient of a logarithm sums dy, which no mask makes 0.
    seen = None if logarithm else _behind_gaps(y != 0)
    given = (_gathered(each, seen, 0.0).reshape(-1, width) for each in (dy, y))
    dx: Tensor = torch.ops.samebits.softmax_dx(*given, dtype, logarithm, backend)
    return _spread(dx.reshape(shape), seen).movedim(-1, dim)


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


def _reduced(losses: Tensor, reduction: int, dtype: torch.dtype) -> Tensor:
    """float32 losses as they are, their sum or their mean, rounded once."""
    if reduction != NONE:
        total = float32_sum(losses, None, False)
        losses = total if reduction == SUM else total / losses.numel()
    return losses.to(dtype)


def mse_loss(x: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    backend_of(x)
    difference = x.float() - target.float()
    return _reduced(difference * difference, reduction, torch.result_type(x, target))


def mse_loss_backward(dloss: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    backend_of(x)
    factor = 2.0 / x.numel() if reduction == MEAN else 2.0
    return ((x.float() - target.float()) * dloss.float() * factor).to(x.dtype)


def binary_cross_entropy_with_logits(
    x: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    """max(x, 0) - x t + log(1 + e^-|x|)."""
    backend_of(x)
    if weight is not None or pos_weight is not None:
        raise RefusedError("binary_cross_entropy_with_logits with weights is not offered; multiply the losses by them")
    wide, wanted = x.float(), target.float()
    losses = wide.clamp(min=0) - wide * wanted + torch.log1p(exp(-wide.abs()))
    return _reduced(losses, reduction, x.dtype)


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
