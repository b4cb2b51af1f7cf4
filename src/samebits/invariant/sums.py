"""Sums over axes as samebits chains, and what is made of them: mean, variance, norms, layer norm, log of a sum.

Speaks aten's argument lists. One chain an output: terms in row-major order of the summed axes, float32 accumulator from
+0, one rounding at the end. A term that is exactly zero changes nothing, so padding rows without gradient do not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from samebits.invariant.pointwise import exp, log, rsqrt, sqrt
from samebits.invariant.products import backend_of
from samebits.invariant.refused import RefusedError


def _axes(x: Tensor, dim: int | Sequence[int] | None) -> list[int]:
    given = [dim] if isinstance(dim, int) else list(dim or ())
    if x.dim() == 0:
        return []
    return sorted({axis % x.dim() for axis in given}) if given else list(range(x.dim()))


def sums_over_rows(x: Tensor, dim: int | Sequence[int] | None = None, *_: object) -> bool:
    """Whether the first axis, a batch's, is among those that are summed away."""
    return 0 in _axes(x, dim)


def float32_sum(x: Tensor, dim: int | Sequence[int] | None, keepdim: bool) -> Tensor:
    """The chains' float32 accumulators."""
    axes = _axes(x, dim)
    sizes = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    accumulator = torch.zeros(sizes, dtype=torch.float32, device=x.device)
    resume_sum(accumulator, x, dim)
    return accumulator if keepdim else accumulator.reshape([x.shape[a] for a in range(x.dim()) if a not in axes])


def resume_sum(accumulator: Tensor, x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> None:
    """accumulator, contiguous <- its chains resumed with x's terms."""
    backend, axes = backend_of(x), _axes(x, dim)
    terms = _count(x, dim)
    if x.numel() == 0:
        return
    if axes == list(range(len(axes))):  # leading axes: rows are added to one row
        torch.ops.samebits.gemm_accumulate_(
            accumulator.view(1, -1), x.new_ones(1, terms), x.reshape(terms, -1), backend
        )
    else:
        kept = [axis for axis in range(x.dim()) if axis not in axes]
        rows = x.permute(*kept, *axes).reshape(-1, terms)
        torch.ops.samebits.gemm_accumulate_(accumulator.view(-1, 1), rows, x.new_ones(terms, 1), backend)


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
    """(y, mean, 1 / sqrt(variance + eps)), the last two in float32."""
    axes = list(range(x.dim() - len(shape), x.dim()))
    wide, count = x.float(), math.prod(shape)
    centre = float32_sum(x, axes, True) / count
    left = wide - centre
    scale = rsqrt(float32_sum(left * left, axes, True) / count + eps)
    y = left * scale
    y = y if weight is None else y * weight.float()
    y = y if bias is None else y + bias.float()
    return y.to(x.dtype), centre, scale


def layer_norm_backward(
    dy: Tensor,
    x: Tensor,
    shape: Sequence[int],
    centre: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    axes, rows = list(range(x.dim() - len(shape), x.dim())), list(range(x.dim() - len(shape)))
    wide, count = dy.float(), math.prod(shape)
    normal = (x.float() - centre) * scale
    dx = dweight = dbias = None
    if wanted[0]:
        inner = wide if weight is None else wide * weight.float()
        centred = inner - float32_sum(inner, axes, True) / count
        dx = ((centred - normal * (float32_sum(inner * normal, axes, True) / count)) * scale).to(x.dtype)
    if wanted[1] and weight is not None:
        dweight = (float32_sum(wide * normal, rows, False) if rows else wide * normal).to(weight.dtype)
    if wanted[2] and bias is not None:
        dbias = (float32_sum(dy, rows, False) if rows else wide).to(bias.dtype)
    return dx, dweight, dbias


def resume_layer_norm_weight(
    accumulator: Tensor, dy: Tensor, x: Tensor, shape: Sequence[int], centre: Tensor, scale: Tensor, *_: object
) -> None:
    _resume_rows(accumulator, dy.float() * ((x.float() - centre) * scale), shape)


def resume_layer_norm_bias(accumulator: Tensor, dy: Tensor, x: Tensor, shape: Sequence[int], *_: object) -> None:
    _resume_rows(accumulator, dy, shape)


def _resume_rows(accumulator: Tensor, terms: Tensor, shape: Sequence[int]) -> None:
    width = math.prod(shape)
    resume_sum(accumulator.view(width), terms.reshape(-1, width), 0)


def rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    """The operator's own; without a weight it is multiplied by ones, which changes nothing."""
    import samebits.ops.rmsnorm  # noqa: F401  registers it

    backend, width = backend_of(x), math.prod(shape)
    weight_H = x.new_ones(width) if weight is None else weight.reshape(-1)
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    y_MH, rstd_M = torch.ops.samebits.rmsnorm(x.reshape(-1, width), weight_H, eps, backend)
    rows = x.shape[: x.dim() - len(shape)]
    return y_MH.reshape(x.shape), rstd_M.reshape(*rows, *[1] * len(shape))


def rms_norm_backward(
    dy: Tensor, x: Tensor, shape: Sequence[int], rstd: Tensor, weight: Tensor | None, wanted: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    backend, width = backend_of(x), math.prod(shape)
    weight_H = x.new_ones(width) if weight is None else weight.reshape(-1)
    dy_MH, x_MH, rstd_M = dy.reshape(-1, width), x.reshape(-1, width), rstd.reshape(-1)
    dx = dweight = None
    if wanted[0]:
        dx = torch.ops.samebits.rmsnorm_dx(dy_MH, x_MH, weight_H, rstd_M, None, backend).reshape(x.shape)
    if wanted[1] and weight is not None:
        accumulator = torch.zeros(width, dtype=torch.float32, device=x.device)
        torch.ops.samebits.rmsnorm_dweight_(accumulator, dy_MH, x_MH, rstd_M, backend)
        dweight = accumulator.to(weight.dtype).reshape(weight.shape)
    return dx, dweight


def resume_rms_norm_weight(
    accumulator: Tensor, dy: Tensor, x: Tensor, shape: Sequence[int], rstd: Tensor, *_: object
) -> None:
    width = math.prod(shape)
    torch.ops.samebits.rmsnorm_dweight_(
        accumulator.view(width), dy.reshape(-1, width), x.reshape(-1, width), rstd.reshape(-1), backend_of(x)
    )
