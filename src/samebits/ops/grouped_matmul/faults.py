"""Planted faults of the grouped product: each breaks one promise, and the check of that promise must say so."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from samebits.native.launch_numbers import forced
from samebits.ops.grouped_matmul import grouped_matmul

_calls = itertools.count()


def _reversed(x: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
    """The same product with the chains over K run backwards: right within rounding, other bits."""
    return grouped_matmul(x.flip(-1), weight.flip(1), expert)


def split_by_batch(x: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
    """Breaks batch and chunk: more rows, another order, as a library does that picks its kernel by size."""
    return grouped_matmul(x, weight, expert) if x.shape[0] > 8 else _reversed(x, weight, expert)


def split_by_load(x: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
    """Breaks the row: an expert with few rows takes another kernel, so its neighbours' choices decide a row's bits."""
    crowded = torch.bincount(expert, minlength=weight.shape[0])[expert] > 8
    return torch.where(crowded[:, None], grouped_matmul(x, weight, expert), _reversed(x, weight, expert))


def other_order_every_time(x: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
    """Breaks repeat: as atomics do."""
    return grouped_matmul(x, weight, expert) if next(_calls) % 2 else _reversed(x, weight, expert)


def reads_its_neighbours(x: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
    """Breaks padding: a NaN in one row reaches the others, as a missing mask lets it."""
    return grouped_matmul(x, weight, expert) + 0.0 * x.sum()


def tile_decides_order(x: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
    """Breaks tile: a launch number that chooses where the sum is cut."""
    plain = forced("threads") in (None, 1) and forced("launch") is None
    return grouped_matmul(x, weight, expert) if plain else _reversed(x, weight, expert)


def _halves(x: Tensor, weight: Tensor, expert: Tensor) -> tuple[Tensor, Tensor]:
    half = x.shape[-1] // 2
    return grouped_matmul(x[:, :half], weight[:, :half], expert), grouped_matmul(x[:, half:], weight[:, half:], expert)


def narrow_partial_sums(x: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
    """Breaks accuracy: two partial sums, each rounded to eight bits of significand before they meet."""
    left, right = _halves(x, weight, expert)
    return (left.bfloat16() + right.bfloat16()).to(x.dtype)


def two_halves(x: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
    """Breaks order: as good a sum as any, but not the declared one."""
    left, right = _halves(x, weight, expert)
    return left + right


def other_order_on_cuda(x: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
    """Breaks device: the accelerator runs the chains backwards."""
    return _reversed(x, weight, expert) if x.is_cuda else grouped_matmul(x, weight, expert)


class _OwnGradient(torch.autograd.Function):
    """The product, with a gradient of the weights that a fault computes from x, dy and the experts."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, expert: Tensor, dweight) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, weight, expert)
        ctx.dweight = dweight
        return grouped_matmul(x, weight, expert).detach()

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, Tensor, None, None]:  # type: ignore[no-untyped-def]
        x, weight, expert = ctx.saved_tensors
        sums = ctx.dweight(x, dy, expert, torch.zeros_like(weight))
        return grouped_matmul(dy, weight.transpose(1, 2), expert), sums, None, None


def _rounded_every_sixteen(x: Tensor, dy: Tensor, expert: Tensor, sums: Tensor) -> Tensor:
    for start in range(0, x.shape[0], 16):
        rows = slice(start, start + 16)
        terms = x[rows, :, None] * dy[rows, None, :]
        sums = sums.index_add(0, expert[rows], terms).bfloat16().to(sums.dtype)
    return sums


def _last_row_first(x: Tensor, dy: Tensor, expert: Tensor, sums: Tensor) -> Tensor:
    x, weight = x.flip(0).detach(), sums.requires_grad_()
    with torch.enable_grad():
        y = grouped_matmul(x, weight, expert.flip(0))
    return torch.autograd.grad(y, weight, dy.flip(0))[0]


def _never_cleared(x: Tensor, dy: Tensor, expert: Tensor, sums: Tensor) -> Tensor:
    weight = sums.requires_grad_()
    with torch.enable_grad():
        y = grouped_matmul(x.detach(), weight, expert)
    (found,) = torch.autograd.grad(y, weight, dy)
    idle = torch.bincount(expert, minlength=sums.shape[0]) == 0
    return torch.where(idle[:, None, None], torch.full_like(found, 1.0), found)


def rounds_between_micro_batches(x: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
    """Breaks micro: the gradient is not the chain that can be resumed."""
    return _OwnGradient.apply(x, weight, expert, _rounded_every_sixteen)  # type: ignore[no-any-return, no-untyped-call]


def rows_descending(x: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
    """Breaks the chain of the gradient: the rows of an expert are added from the last to the first."""
    return _OwnGradient.apply(x, weight, expert, _last_row_first)  # type: ignore[no-any-return, no-untyped-call]


def idle_experts_keep_memory(x: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
    """Breaks the zero: the gradient of an expert without rows is what its memory held."""
    return _OwnGradient.apply(x, weight, expert, _never_cleared)  # type: ignore[no-any-return, no-untyped-call]


def outputs_stay_sorted(x: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
    """Breaks the place of a row: outputs come in the order of the experts and are not put back."""
    return grouped_matmul(x, weight, expert)[torch.argsort(expert, stable=True)]


def experts_wrap(x: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
    """Accepts bad input: -1 is taken for the last expert, and E for the first."""
    return grouped_matmul(x, weight, expert % max(1, weight.shape[0]))
