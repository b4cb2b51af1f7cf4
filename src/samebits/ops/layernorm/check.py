"""How a checker drives `layernorm` and its mean: inputs, exact values and bounds, probes and launch numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from samebits.contracts.orders import sum_error
from samebits.contracts.spec import Arguments, Bounded, Function, OperatorSpec, Probe
from samebits.native.launch_numbers import cpu_launches
from samebits.numerics.elementary import MAXIMUM_ULP
from samebits.numerics.recipes import make
from samebits.ops.layernorm import layernorm_bias_gradient_, layernorm_statistics, layernorm_weight_gradient_
from samebits.ops.layernorm.reference import layernorm64, mean64, statistics64
from samebits.ops.rounding import FLOAT32_ROUNDOFF, FLOAT32_TINY, allowed_error

# The gradients of weight and bias need at least 16 rows a tile for their dot.
TRITON_ROWS_AND_WARPS = ((16, 1), (16, 4), (32, 8))
# The specs' default, which every call of a checker uses.
EPSILON = 1e-5
U = FLOAT32_ROUNDOFF


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    rows, width = shape
    dtype = getattr(torch, format)
    drawn = {"x": (recipe, (rows, width)), "weight": ("normal", (width,)), "bias": ("normal", (width,))}
    return {
        name: torch.from_numpy(make(how, size, 3 * seed + at, format)).to(dtype)
        for at, (name, (how, size)) in enumerate(drawn.items())
    }


def _make_rows(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    return {"x": torch.from_numpy(make(recipe, tuple(shape), 3 * seed, format)).to(getattr(torch, format))}


@dataclass(frozen=True, kw_only=True, slots=True)
class Normalised:
    """Rows without weight and bias in float64, and how far a float32 kernel may be from them."""

    xhat: Tensor
    rstd: Tensor
    of_xhat: Tensor
    """Absolute, element by element."""
    of_rstd: Tensor
    """Relative, row by row."""


def normalised(x: Tensor, eps: float, error: Callable[[int], float]) -> Normalised:
    """The mean is off by d at most. Deviations from a mean that is d off have d^2 more variance, for they add to 0."""
    x, width = x.double(), x.shape[-1]
    mean, rstd = (each[..., None] for each in statistics64(x, eps))
    d = mean_error(x, error)[..., None]
    # The sum; two roundings of what is squared, the quotient, eps, its addition; squares that underflow.
    of_variance = error(width) + 5 * U + FLOAT32_TINY * rstd.square()
    shifted = (d.square() * rstd.square() / 2).clamp(max=1.0)
    of_rstd = of_variance / 2 * (1 + of_variance) + MAXIMUM_ULP["rsqrt"] * 2 * U + shifted
    xhat = (x - mean) * rstd
    # A subtraction and a product are rounded.
    of_xhat = xhat.abs() * (of_rstd + 3 * U) + rstd * d * (1 + of_rstd + 3 * U)
    return Normalised(xhat=xhat, rstd=rstd, of_xhat=of_xhat, of_rstd=of_rstd)


def mean_error(x: Tensor, error: Callable[[int], float]) -> Tensor:
    """Of a row's mean, absolute: the sum and the quotient."""
    return (error(x.shape[-1]) + 2 * U) * x.double().abs().mean(-1) + FLOAT32_TINY


def allowed_output(y: Tensor, weight: Tensor, rows: Normalised, dtype: torch.dtype) -> Tensor:
    """How far an output may be from `y`, in float64: the normalised row's error, one fused step, the storing."""
    before = weight.double().abs() * rows.of_xhat
    return _allowed(y, before + U * (y.abs() + before), dtype)


def _allowed(exact: Tensor, before: Tensor, dtype: torch.dtype) -> Tensor:
    """`before`: the error of the float32 value that is stored. Tiny ones are those of products that underflow."""
    return allowed_error(exact, before, 1.0, 4, 0, dtype)


def _exact(arguments: Arguments, dy: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    x, weight = arguments["x"].double(), arguments["weight"].double()
    bias = arguments["bias"].double() if "bias" in arguments else torch.zeros_like(weight)
    eps = float(arguments["eps"]) if "eps" in arguments else EPSILON
    rows, dy64 = normalised(x, eps, error), dy.double()
    y = layernorm64(x, weight, bias, eps)
    chain = sum_error("chain-1", x.shape[0])
    terms, of_terms = dy64 * rows.xhat, dy64.abs() * rows.of_xhat
    of_dweight = (of_terms + (chain + 2 * U) * (terms.abs() + of_terms)).sum(0)
    dx, of_dx = _input_gradient(dy64 * weight, rows, error)
    dweight, dbias, of_dbias = terms.sum(0), dy64.sum(0), chain * dy64.abs().sum(0)
    return {
        "output": Bounded(exact=y, allowed=allowed_output(y, weight, rows, dy.dtype)),
        "x": Bounded(exact=dx, allowed=_allowed(dx, of_dx, dy.dtype)),
        "weight": Bounded(exact=dweight, allowed=_allowed(dweight, of_dweight, dy.dtype)),
        "bias": Bounded(exact=dbias, allowed=_allowed(dbias, of_dbias, dy.dtype)),
    }


def _input_gradient(g: Tensor, rows: Normalised, error: Callable[[int], float]) -> tuple[Tensor, Tensor]:
    """rstd * (g - mean(g) - xhat * mean(g * xhat)) and its error before it is stored."""
    of_mean = error(g.shape[-1]) + 3 * U
    size, reach = g.abs(), rows.xhat.abs() + rows.of_xhat
    centre, slope = g.mean(-1, keepdim=True), (g * rows.xhat).mean(-1, keepdim=True)
    of_centre = of_mean * size.mean(-1, keepdim=True)
    of_slope = (size * rows.of_xhat).mean(-1, keepdim=True) + of_mean * (size * reach).mean(-1, keepdim=True)
    inner = g - centre - rows.xhat * slope
    # g, the centred g and the fused step are rounded, each at most as large as all of them together.
    of_inner = (
        3 * U * (size + centre.abs() + reach * slope.abs()) + of_centre + rows.of_xhat * slope.abs() + reach * of_slope
    )
    return rows.rstd * inner, rows.rstd * ((1 + rows.of_rstd + 2 * U) * of_inner + (rows.of_rstd + 2 * U) * inner.abs())


def _exact_mean(arguments: Arguments, _: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    mean = mean64(arguments["x"])
    return {"output": Bounded(exact=mean, allowed=_allowed(mean, mean_error(arguments["x"], error), torch.float32))}


def _probe(function: Function, terms: int, rows: int, row: int, format: str, device: str) -> Probe:
    """Row `row` holds the numbers; their mean times a power of two is their sum."""
    if terms & (terms - 1):
        raise ValueError(f"layernorm: the mean shows its sum for 2, 4, 8, 16, ... terms, got {terms}")
    dtype = getattr(torch, format)
    batch = torch.ones(rows, terms, dtype=dtype, device=device)

    def run(values: np.ndarray) -> float:
        batch[row] = torch.from_numpy(values).to(dtype)
        return float(function(batch)[row]) * terms

    return run


def launches(backend: str, format: str) -> Sequence[Mapping[str, object]]:
    """Threads times instruction sets on the CPU; rows of a tile times warps by Triton."""
    if backend == "cpu":
        return cpu_launches()
    from samebits.ops._triton.rows import RowLaunch

    return [{"launch": RowLaunch(rows=rows, warps=warps)} for rows, warps in TRITON_ROWS_AND_WARPS]


def _resume(arguments: Arguments, dy: Tensor, sums: dict[str, Tensor] | None, backend: str) -> dict[str, Tensor]:
    x = arguments["x"]
    if sums is None:
        sums = {name: torch.zeros(x.shape[-1], dtype=torch.float32, device=x.device) for name in ("weight", "bias")}
    mean, rstd = layernorm_statistics(x, EPSILON, backend=backend)
    layernorm_weight_gradient_(sums["weight"], dy, x, mean, rstd, backend=backend)
    layernorm_bias_gradient_(sums["bias"], dy, backend=backend)
    return sums


def _of_torch(x: Tensor, weight: Tensor, bias: Tensor, eps: float = EPSILON) -> Tensor:
    """torch's own, whose second argument is the shape."""
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, eps)


SPECS = {
    "layernorm": OperatorSpec(
        name="layernorm",
        row_arguments=("x",),
        shared_arguments=("weight", "bias"),
        shape_axes="MH",
        make=_make,
        exact=_exact,
        launches=launches,
        resume=_resume,
        optional_arguments=("bias",),
        own_numbers={"eps": (EPSILON, 1e-6, 1e-12, 2.0**-23)},
        aliases=("layer_norm",),
        stock=dict.fromkeys((torch.nn.functional.layer_norm, torch.layer_norm), _of_torch),
    ),
    "layernorm_mean": OperatorSpec(
        name="layernorm_mean",
        row_arguments=("x",),
        shared_arguments=(),
        shape_axes="MH",
        make=_make_rows,
        exact=_exact_mean,
        launches=launches,
        differentiable=False,
        probe=_probe,
    ),
}
