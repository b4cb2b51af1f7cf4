"""How far a correct attention may be from float64: derived step by step from the declared order, element by element.

Names ending in _error are absolute, u is float32's unit roundoff. Errors of exponents are in powers of two, so a weight
is off by the factor 2^error. Products of two errors are kept where one may be large: weights of 16-bit formats."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from samebits.contracts.spec import Arguments, Bounded
from samebits.ops.attention.exact import Options, attention64, dense_weights, repeated
from samebits.ops.attention.forms import SPLIT_KEYS, rescalings
from samebits.ops.rounding import FLOAT32_ROUNDOFF, allowed_error

u = FLOAT32_ROUNDOFF
LOG2_E = math.log2(math.e)
# Relative, in u: 0.78 ulp of the elementary function, 2 ulp of the hardware's; an ulp is at most 2 u.
EXP2_ERROR = 4 * u
# The elementary tanh and log: less than one ulp.
TANH_ERROR = 2 * u
LOG_ERROR = 2 * u


@dataclass(frozen=True, slots=True)
class _Storage:
    """What rounding a weight to the dtype loses: a share of it, and in the subnormals of float16 a fixed amount."""

    relative: float
    absolute: float

    @classmethod
    def of(cls, dtype: torch.dtype) -> _Storage:
        if dtype == torch.float32:
            return cls(0.0, 0.0)
        information = torch.finfo(dtype)
        return cls(information.eps / 2, information.smallest_normal * information.eps / 2)


@dataclass(frozen=True, slots=True)
class _Weights:
    """(B, H, S, K): exact weights, the softcap's slope, the share by which a weight and their sum may be off."""

    exact: Tensor
    slope: Tensor
    slope_error: Tensor
    share: Tensor
    total_share: Tensor
    lse_error: Tensor


def _weights(q: Tensor, k: Tensor, options: Options, error: Callable[[int], float]) -> _Weights:
    """The chain of a score, the softcap, the exponent, and what the walk over blocks and the merge of splits add."""
    head, keys, softcap = q.shape[-1], k.shape[1], options.softcap
    q64, k64 = q.double(), repeated(k, q)
    exact, z = dense_weights(q, k, options)
    scale = head**-0.5
    score_error = error(head) * torch.einsum("bihd,bjhd->bhij", q64.abs(), k64.abs())
    slope, slope_error = torch.ones_like(z), torch.zeros_like(z)
    z_error = score_error * scale
    if softcap:
        tanh = z / softcap
        inner = torch.einsum("bihd,bjhd->bhij", q64, k64) * scale / softcap
        tanh_error = (z_error / softcap + 2 * u * inner.abs()) + TANH_ERROR * tanh.abs()
        z_error = softcap * tanh_error + 2 * u * z.abs()
        slope, slope_error = 1 - tanh.square(), 2 * tanh_error + 2 * u
    seen = exact > 0
    level = (z * LOG2_E).masked_fill(~seen, 0.0).abs().amax(-1, keepdim=True)
    steps = rescalings(keys)
    # c and every product with it are rounded once, the difference once, and the steps between levels once in all:
    # levels only rise, within a split and from split to split, and a split is merged at the level that it ends with.
    exponent_error = z_error * LOG2_E + u * (4 * (z * LOG2_E).abs() + 4 * level)
    share = torch.expm1(math.log(2) * exponent_error) + (steps + 1) * (EXP2_ERROR + u)
    # The fold of a block's 64, one addition a block and a merge, and the fold of eight.
    total_share = (exact * share).sum(-1, keepdim=True) + (steps + 10) * (EXP2_ERROR + 2 * u)
    lse2 = torch.logsumexp(z.masked_fill(~seen, -torch.inf), -1, keepdim=True) * LOG2_E
    lse_error = total_share * LOG2_E + (LOG_ERROR + 4 * u) * (level + math.log2(keys) + 1) + u * lse2.abs()
    return _Weights(exact, slope, slope_error, share.masked_fill(~seen, 0.0), total_share, lse_error)


def exact(options: Options, arguments: Arguments, dy: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    """The output and the gradients of q, k and v in float64, and how far each element may be from them."""
    q, k, v, storage = arguments["q"], arguments["k"], arguments["v"], _Storage.of(dy.dtype)
    keys, group = k.shape[1], q.shape[2] // k.shape[2]
    w = _weights(q, k, options, error)
    v64, k64, q64, dout = repeated(v, q), repeated(k, q), q.double(), dy.double()
    out = attention64(q, k, v, options)
    seen = (w.exact > 0).double()

    def over_keys(pairs: Tensor, values: Tensor) -> Tensor:
        return torch.einsum("bhij,bjhd->bihd", pairs, values)

    def over_queries(pairs: Tensor, values: Tensor) -> Tensor:
        """Summed over the heads of a group too."""
        by_head = torch.einsum("bhij,bihd->bjhd", pairs, values)
        return by_head.reshape(*by_head.shape[:2], -1, group, by_head.shape[-1]).sum(3)

    magnitude = over_keys(w.exact, v64.abs())
    weight_error = over_keys(w.exact * w.share, v64.abs()) + over_keys(seen * storage.absolute, v64.abs())
    down = w.total_share.transpose(1, 2)
    # A chain over the keys of a split, then one fused addition a merge.
    values_error = error(min(keys, SPLIT_KEYS)) + 2 * u * ((keys - 1) // SPLIT_KEYS)
    sum_error = magnitude * (storage.relative + values_error) * (1 + 2 * storage.relative)
    out_error = ((weight_error + sum_error) * (1 + down) + out.abs() * down) / (1 - down)
    bounds = {"output": _bounded(out, out_error, magnitude, keys, dy.dtype)}

    # The weights of the backward pass come from the scores and the stored logarithm; at most 1.
    share = torch.expm1(math.log(2) * w.lse_error) * (1 + w.share) + w.share + EXP2_ERROR
    p, p_error = w.exact, w.exact * share
    dp = torch.einsum("bihd,bjhd->bhij", dout, v64)
    delta = (dout * out).sum(-1).transpose(1, 2)[..., None]
    delta_error = (dout.abs() * (bounds["output"].allowed + 12 * u * out.abs())).sum(-1).transpose(1, 2)[..., None]
    inner_error = error(q.shape[-1]) * torch.einsum("bihd,bjhd->bhij", dout.abs(), v64.abs()) + delta_error
    inner = (dp - delta).abs()
    ds = p * (dp - delta) * w.slope
    ds_error = (p_error * inner + (p + p_error) * inner_error) * (w.slope + w.slope_error) + p * inner * w.slope_error
    ds_error = ds_error * (1 + 8 * u) + 4 * u * p * (dp.abs() + delta.abs())
    # Rounded to the dtype before the sums take them.
    ds_error = (ds_error + ds.abs() * storage.relative) * (1 + storage.relative) + seen * storage.absolute
    p_error = (p_error + p * storage.relative) * (1 + storage.relative) + seen * storage.absolute
    scale, rows = q.shape[-1] ** -0.5, q.shape[1] * group

    def gradient(
        sums: Callable[[Tensor, Tensor], Tensor],
        pairs: Tensor,
        pairs_error: Tensor,
        values: Tensor,
        terms: int,
        factor: float,
    ) -> Bounded:
        size = sums(pairs.abs() + pairs_error, values.abs()) * factor
        off = sums(pairs_error, values.abs()) * factor + error(terms) * size
        return _bounded(sums(pairs, values) * factor, off, size, terms, dy.dtype)

    bounds["q"] = gradient(over_keys, ds, ds_error, k64, keys, scale)
    bounds["k"] = gradient(over_queries, ds, ds_error, q64, rows, scale)
    bounds["v"] = gradient(over_queries, p, p_error, dout, rows, 1.0)
    return bounds


def _bounded(exact_value: Tensor, off: Tensor, magnitude: Tensor, terms: int, dtype: torch.dtype) -> Bounded:
    """The last steps: two roundings, float64's own error, and the rounding to the dtype."""
    half_ulp = 0.0 if dtype == torch.float32 else torch.finfo(dtype).eps / 2
    last = allowed_error(exact_value, magnitude, 0.0, 4 * terms, 3, dtype)
    return Bounded(exact=exact_value, allowed=last + off * (1 + half_ulp))
