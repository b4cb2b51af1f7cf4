"""Sums over axes as samebits chains, and what is made of them: mean, variance, norms, the log of a sum, layer norm.

Speaks aten's argument lists. One chain an output: terms in row-major order of the summed axes, float32 accumulator from
+0, one rounding at the end. A term that is exactly zero changes nothing, so padding rows without gradient do not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from samebits.invariant.pointwise import exp, log, sqrt
from samebits.invariant.products import backend_of
from samebits.invariant.refused import RefusedError
from samebits.ops.registering import call

FEW_COLUMNS = 256
"""Chains side by side that leave most of a GPU idle."""


def _axes(x: Tensor, dim: int | Sequence[int] | None) -> tuple[int, ...]:
    return _split(x.dim(), (dim,) if isinstance(dim, int) else tuple(dim or ()))[0]


@cache
def _split(dimensions: int, given: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(axes that are summed away, axes that are kept), both in order."""
    summed = {axis % dimensions for axis in given or range(dimensions)} if dimensions else set()
    return tuple(sorted(summed)), tuple(axis for axis in range(dimensions) if axis not in summed)


def sums_over_rows(x: Tensor, dim: int | Sequence[int] | None = None, *_: object) -> bool:
    """Whether the first axis, a batch's, is among those that are summed away."""
    return 0 in _axes(x, dim)


def float32_sum(x: Tensor, dim: int | Sequence[int] | None, keepdim: bool) -> Tensor:
    """The chains' float32 accumulators."""
    shape = x.shape
    axes, kept = _split(x.dim(), _axes(x, dim))
    sizes = [1 if axis in axes else size for axis, size in enumerate(shape)] if keepdim else [shape[a] for a in kept]
    if kept and x.numel() and _is_behind(axes, kept) and _a_thread_can_have_a_row(rows := _rows(x, axes, kept)):
        from samebits.invariant.triton_sums import sums_along_rows

        backend_of(x)
        return sums_along_rows(rows).view(sizes)
    accumulator = torch.zeros(sizes, dtype=torch.float32, device=x.device)
    resume_sum(accumulator, x, dim)
    return accumulator


def resume_sum(accumulator: Tensor, x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> None:
    """accumulator, contiguous <- its chains resumed with x's terms."""
    backend, (axes, kept) = backend_of(x), _split(x.dim(), _axes(x, dim))
    if x.numel() == 0:
        return
    if not _is_behind(axes, kept):  # rows are added to one row
        terms = math.prod(x.shape[axis] for axis in axes)
        torch.ops.samebits.gemm_accumulate_(
            accumulator.view(1, -1), x.new_ones(1, terms), x.reshape(terms, -1), backend
        )
        return
    rows = _rows(x, axes, kept)
    if _a_thread_can_have_a_row(rows):
        from samebits.invariant.triton_sums import resume_sums_along_rows

        resume_sums_along_rows(accumulator.view(-1), rows)
    else:
        ones = x.new_ones(rows.shape[1], 1)
        torch.ops.samebits.gemm_accumulate_(accumulator.view(-1, 1), rows, ones, backend)


def _is_behind(axes: tuple[int, ...], kept: tuple[int, ...]) -> bool:
    """Whether an axis that is kept stands before one that is summed away."""
    return bool(axes and kept and kept[0] < axes[-1])


def _rows(x: Tensor, axes: tuple[int, ...], kept: tuple[int, ...]) -> Tensor:
    """(sums, terms of each)."""
    ordered = x if axes[0] > kept[-1] else x.permute(*kept, *axes)
    return ordered.reshape(-1, math.prod(x.shape[axis] for axis in axes))


def _a_thread_can_have_a_row(x_MK: Tensor) -> bool:
    """Where a product with ones has a quicker kernel of its order. In 16 bits that is the matrix units' order."""
    return x_MK.is_cuda and x_MK.dtype == torch.float32 and (x_MK.stride(1) == 1 or x_MK.shape[1] == 1)


def _count(x: Tensor, dim: int | Sequence[int] | None) -> int:
    return math.prod(x.shape[axis] for axis in _axes(x, dim))


def sum(
    x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    x = x if dtype is None else x.to(dtype)
    return float32_sum(x, dim, keepdim).to(x.dtype)


def mean(
    x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    x = x if dtype is None else x.to(dtype)
    return (float32_sum(x, dim, keepdim) / _count(x, dim)).to(x.dtype)


def var_mean(
    x: Tensor, dim: int | Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """The squares of what is left after the mean is taken off, summed."""
    count, wide = _count(x, dim), x.float()
    centre = float32_sum(x, dim, True) / count
    left = wide - centre
    variance = float32_sum(left * left, dim, keepdim) / max(count - (1 if correction is None else correction), 0)
    return variance.to(x.dtype), centre.reshape(variance.shape).to(x.dtype)


def var(
    x: Tensor, dim: int | Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    return var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def std(
    x: Tensor, dim: int | Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    return sqrt(var(x.float(), dim, correction=correction, keepdim=keepdim)).to(x.dtype)


def vector_norm(
    x: Tensor,
    order: float = 2,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    if order not in (1, 2, math.inf):
        raise RefusedError(f"a norm of order {order} is not offered; allowed: 1, 2, inf")
    backend_of(x)
    wide = x.float()
    if order == math.inf and x.numel():
        return wide.abs().amax(_axes(x, dim), keepdim).to(dtype or x.dtype)
    total = float32_sum(wide.abs() if order == 1 else wide * wide, dim, keepdim)
    return (total if order == 1 else sqrt(total)).to(dtype or x.dtype)


def logsumexp(x: Tensor, dim: int | Sequence[int], keepdim: bool = False) -> Tensor:
    """The maximum plus the logarithm of the sum of exp(x - maximum); a row of -inf gives -inf."""
    backend_of(x)
    wide, axes = x.float(), _axes(x, dim)
    top = wide.amax(axes, True)
    shift = torch.where(top.abs() == math.inf, 0.0, top)
    total = log(float32_sum(exp(wide - shift), axes, keepdim))
    return (total + shift.reshape(total.shape)).to(x.dtype)


def layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, mean, 1 / sqrt(variance + eps)), the last two in float32: the operator's own.

    Of several dtypes, as torch allows them, all are taken in float32, where nothing is lost; y is rounded once."""
    import samebits.ops.layernorm  # noqa: F401  registers it

    backend, (rows, width) = backend_of(x), _rows_of(x, shape)
    statistics = [*x.shape[: x.dim() - len(shape)], *[1] * len(shape)]
    if width == 0:
        nothing = torch.full(statistics, math.nan, device=x.device)
        return torch.empty_like(x), nothing, nothing.clone()
    x_MH, weight_H, bias_H = _one_dtype(x.reshape(rows, width), _flat(weight), _flat(bias))
    y_MH, mean_M, rstd_M = torch.ops.samebits.layernorm(x_MH, weight_H, bias_H, eps, backend)
    return y_MH.to(x.dtype).reshape(x.shape), mean_M.reshape(statistics), rstd_M.reshape(statistics)


def layer_norm_backward(
    dy: Tensor,
    x: Tensor,
    shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    backend, (rows, width) = backend_of(x), _rows_of(x, shape)
    dx = dweight = dbias = None
    if wanted[0]:
        dx = torch.empty_like(x)
        if width:
            dy_MH, x_MH, weight_H = _one_dtype(dy.reshape(rows, width), x.reshape(rows, width), _flat(weight))
            statistics = mean.float().reshape(rows), rstd.float().reshape(rows)
            dx = torch.ops.samebits.layernorm_dx(dy_MH, x_MH, weight_H, *statistics, backend)
            dx = dx.to(x.dtype).reshape(x.shape)
    if wanted[1] and weight is not None:
        total = torch.zeros(list(shape), dtype=torch.float32, device=x.device)
        resume_layer_norm_weight(total, dy, x, shape, mean, rstd)
        dweight = total.to(weight.dtype)
    if wanted[2] and bias is not None:
        total = torch.zeros(list(shape), dtype=torch.float32, device=x.device)
        resume_layer_norm_bias(total, dy, x, shape)
        dbias = total.to(bias.dtype)
    return dx, dweight, dbias


def resume_layer_norm_weight(
    accumulator: Tensor, dy: Tensor, x: Tensor, shape: Sequence[int], mean: Tensor, rstd: Tensor, *_: object
) -> None:
    rows, width = _rows_of(x, shape)
    dy_MH, x_MH = _one_dtype(dy.reshape(rows, width), x.reshape(rows, width))
    statistics = mean.float().reshape(rows), rstd.float().reshape(rows)
    if width:
        torch.ops.samebits.layernorm_dweight_(accumulator.view(width), dy_MH, x_MH, *statistics, backend_of(x))


def resume_layer_norm_bias(accumulator: Tensor, dy: Tensor, x: Tensor, shape: Sequence[int], *_: object) -> None:
    rows, width = _rows_of(x, shape)
    if width:
        torch.ops.samebits.layernorm_dbias_(accumulator.view(width), dy.reshape(rows, width), backend_of(x))


def _rows_of(x: Tensor, shape: Sequence[int]) -> tuple[int, int]:
    """How many rows x has, and how many elements each, where the axes of `shape` are one."""
    return math.prod(x.shape[: x.dim() - len(shape)]), math.prod(shape)


def _flat(vector: Tensor | None) -> Tensor | None:
    return None if vector is None else vector.reshape(-1)


def _one_dtype(*tensors: Tensor | None) -> list[Any]:
    """As they are where their dtypes agree, in float32 where they do not."""
    agree = len({each.dtype for each in tensors if each is not None}) == 1
    return [each if each is None or agree else each.float() for each in tensors]


def rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    """The operator's own; without a weight it is multiplied by ones, which changes nothing."""
    import samebits.ops.rmsnorm  # noqa: F401  registers it

    backend, width = backend_of(x), math.prod(shape)
    weight_H = x.new_ones(width) if weight is None else weight.reshape(-1)
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    with torch.no_grad():  # below autograd already: said so, it goes to the kernel without torch's dispatcher
        y_MH, rstd_M = call("rmsnorm", x.reshape(-1, width), weight_H, eps, backend)
    rows = x.shape[: x.dim() - len(shape)]
    # As no view: what comes out of a norm may be written to.
    return torch.ops.aten._unsafe_view(y_MH, x.shape), rstd_M.reshape(*rows, *[1] * len(shape))


def rms_norm_backward(
    dy: Tensor, x: Tensor, shape: Sequence[int], rstd: Tensor, weight: Tensor | None, wanted: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    backend, width = backend_of(x), math.prod(shape)
    weight_H = x.new_ones(width) if weight is None else weight.reshape(-1)
    dx = dweight = None
    if wanted[0]:
        rows = dy.reshape(-1, width), x.reshape(-1, width), weight_H, rstd.reshape(-1)
        with torch.no_grad():
            dx = call("rmsnorm_dx", *rows, None, backend).reshape(x.shape)
    if wanted[1] and weight is not None:
        accumulator = torch.zeros(list(shape), dtype=torch.float32, device=x.device)
        resume_rms_norm_weight(accumulator, dy, x, shape, rstd)
        dweight = accumulator.to(weight.dtype)
    return dx, dweight


def resume_rms_norm_weight(
    accumulator: Tensor, dy: Tensor, x: Tensor, shape: Sequence[int], rstd: Tensor, *_: object
) -> None:
    """accumulator <- the chain over rows, resumed.

    A norm of heads has few columns and a row a head: where there are matrix units, terms of 16 bits go to them."""
    backend, width = backend_of(x), math.prod(shape)
    dy_MH, x_MH, rstd_M = dy.reshape(-1, width), x.reshape(-1, width), rstd.reshape(-1)
    if x.is_cuda and x.dtype != torch.float32 and width <= FEW_COLUMNS:
        with torch.no_grad():
            xhat_MH = torch.mul(x_MH, rstd_M.unsqueeze(1), out=torch.empty_like(x_MH))  # rounded as it is stored
            resume_sum(accumulator.view(width), dy_MH * xhat_MH, 0)
    else:
        torch.ops.samebits.rmsnorm_dweight_(accumulator.view(width), dy_MH, x_MH, rstd_M, backend)
