"""Planted faults of the matrix product: each breaks one promise, and the check of that promise must say so."""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch
from torch import Tensor

from samebits import native
from samebits.native.launch_numbers import forced, launching
from samebits.ops.arguments import DTYPES
from samebits.ops.matmul import linear, matmul
from samebits.ops.matmul.launch_table import Launch

_calls = itertools.count()


def _reversed(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same product with the chain run backwards: right within rounding, other bits."""
    return linear(x.flip(-1), weight.flip(-1), bias)


def split_by_batch(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Breaks batch, chunk and padding: more rows, another order, as a library does that picks its kernel by size."""
    return linear(x, weight, bias) if x.shape[0] > 8 else _reversed(x, weight, bias)


def other_order_every_time(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Breaks repeat: as atomics do."""
    return linear(x, weight, bias) if next(_calls) % 2 else _reversed(x, weight, bias)


def reads_its_neighbours(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Breaks padding: a NaN in one row reaches the others, as a missing mask lets it."""
    return linear(x, weight, bias) + 0.0 * x.sum()


def tile_decides_order(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Breaks tile: a launch number that chooses where the sum is cut."""
    plain = forced("threads") in (None, 1) and forced("launch") is None
    return linear(x, weight, bias) if plain else _reversed(x, weight, bias)


def narrow_partial_sums(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Breaks accuracy: two partial sums, each rounded to eight bits of significand before they meet."""
    half = x.shape[-1] // 2
    left, right = linear(x[..., :half], weight[..., :half]), linear(x[..., half:], weight[..., half:])
    whole = left.bfloat16() + right.bfloat16()
    return (whole if bias is None else whole + bias).to(x.dtype)


def two_halves(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Breaks order: as good a sum as any, but not the declared one."""
    half = x.shape[-1] // 2
    whole = linear(x[..., :half], weight[..., :half]) + linear(x[..., half:], weight[..., half:])
    return whole if bias is None else whole + bias


def other_order_on_cuda(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Breaks device: the accelerator runs the chain backwards."""
    return _reversed(x, weight, bias) if x.is_cuda else linear(x, weight, bias)


class _LosesRows(torch.autograd.Function):
    """A product whose weight gradient is rounded after every 16 rows, as accumulation in a narrow gradient does."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, weight)
        return linear(x, weight, bias).detach()

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[no-untyped-def]
        x, weight = ctx.saved_tensors
        dweight = torch.zeros_like(weight)
        for start in range(0, x.shape[0], 16):
            rows = slice(start, start + 16)
            dweight = dweight + (dy[rows].T @ x[rows]).bfloat16().to(dweight.dtype)
        return dy @ weight, dweight, dy.sum(0)


def rounds_between_micro_batches(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Breaks micro: the gradient is not the chain that can be resumed."""
    return _LosesRows.apply(x, weight, bias)  # type: ignore[no-any-return, no-untyped-call]


def matmul_split_by_batch(a: Tensor, b: Tensor) -> Tensor:
    return split_by_batch(a, b.T)


def matmul_tile_decides_order(a: Tensor, b: Tensor) -> Tensor:
    return tile_decides_order(a, b.T)


def matmul_narrow_partial_sums(a: Tensor, b: Tensor) -> Tensor:
    return narrow_partial_sums(a, b.T)


def matmul_two_halves(a: Tensor, b: Tensor) -> Tensor:
    return two_halves(a, b.T)


def matmul_rounds_between_micro_batches(a: Tensor, b: Tensor) -> Tensor:
    return rounds_between_micro_batches(a, b.T, a.new_zeros(b.shape[1]))


def rows_and_columns_swapped(a: Tensor, b: Tensor) -> Tensor:
    """Breaks the shape, and the values of a square one: stored as its transpose."""
    return matmul(a, b).transpose(-2, -1) if a.dim() > 1 else matmul(a, b)


def strides_of_b_swapped(a: Tensor, b: Tensor) -> Tensor:
    """Breaks the placement of terms: the memory of b is walked as if it were transposed."""
    return matmul(a, b.contiguous().reshape(b.shape[1], b.shape[0]).T)


def loses_the_last_tile(a: Tensor, b: Tensor) -> Tensor:
    """Breaks the sum: terms past the last whole tile of 16 are left out of it."""
    kept = a.shape[-1] // 16 * 16
    return matmul(a[..., :kept], b[:kept])


def tail_is_not_masked(a: Tensor, b: Tensor) -> Tensor:
    """Breaks the sum: the last tile of 16 reads on, into what lies there: here the first terms once more."""
    more = (-a.shape[-1]) % 16 % a.shape[-1]
    return matmul(torch.cat([a, a[..., :more]], -1), torch.cat([b, b[:more]]))


def operands_in_nineteen_bits(a: Tensor, b: Tensor) -> Tensor:
    """Breaks float32: the matrix unit takes ten bits of fraction and leaves out the rest."""
    return matmul(*((each.float().view(torch.int32) & ~0x1FFF).view(torch.float32).to(each.dtype) for each in (a, b)))


def order_by_columns(a: Tensor, b: Tensor) -> Tensor:
    """Breaks the order of a sum: few columns, another kernel, which runs the chain backwards."""
    return matmul(a, b) if b.shape[1] > 1 else matmul(a.flip(-1), b.flip(0))


def compiled_for_every_shape(a: Tensor, b: Tensor) -> Tensor:
    """Breaks the one binary: sizes choose it, or are compiled in. Where a CPU has one of ours, torch has the other."""
    if not a.is_cuda:
        sets = native.instruction_sets()
        binary = a.shape[0] % max(len(sets), 2)
        if binary == len(sets):
            return a @ b
        with launching(instruction_set=sets[binary]):
            return matmul(a, b)
    chosen = forced("launch")
    with launching(launch=replace(chosen, group=9 + next(_calls)) if isinstance(chosen, Launch) else chosen):
        return matmul(a, b)


def vendor_product(a: Tensor, b: Tensor) -> Tensor:
    """Breaks the one binary: ours never runs, the library's does."""
    return a @ b


def takes_anything(a: Tensor, b: Tensor) -> Tensor:
    """Breaks refusal: what does not fit is made to."""
    narrow = torch.float32 if a.dtype not in DTYPES else a.dtype
    return matmul(a.to(narrow), b.reshape(b.shape[0], -1)[: a.shape[-1]].to(narrow))
