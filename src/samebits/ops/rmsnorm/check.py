"""How a checker drives `rmsnorm` and its statistic: inputs, exact values and bounds, probes and launch numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from samebits.contracts.orders import sum_error
from samebits.contracts.spec import Arguments, Bounded, Function, OperatorSpec, Probe
from samebits.native.launch_numbers import cpu_launches
from samebits.numerics.elementary import MAXIMUM_ULP, evaluate
from samebits.numerics.probes import Encoding
from samebits.numerics.recipes import make
from samebits.ops.rmsnorm import rmsnorm_statistic, rmsnorm_weight_gradient_
from samebits.ops.rmsnorm.reference import rmsnorm64
from samebits.ops.rounding import FLOAT32_ROUNDOFF, allowed_error

# The weight's gradient needs at least 16 rows a tile for its dot.
TRITON_LAUNCHES = ((16, 32, 1), (16, 32, 4), (32, 32, 8), (16, 512, 4))
# The specs' default, which every call of a checker uses.
EPSILON = 1e-6


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    rows, width = shape
    dtype = getattr(torch, format)
    return {
        "x": torch.from_numpy(make(recipe, (rows, width), 2 * seed, format)).to(dtype),
        "weight": torch.from_numpy(make("normal", (width,), 2 * seed + 1, format)).to(dtype),
    }


def statistic_error(width: int, error: Callable[[int], float]) -> float:
    """Relative error of rstd: the sum, 1/H, the mean, eps, its addition; halved by the root; the root's own."""
    return (error(width) + 5 * FLOAT32_ROUNDOFF) / 2 + MAXIMUM_ULP["rsqrt"] * 2 * FLOAT32_ROUNDOFF


def _exact(arguments: Arguments, dy: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    x, weight, dy64 = arguments["x"].double(), arguments["weight"].double(), dy.double()
    rows, width = x.shape
    eps = float(arguments["eps"]) if "eps" in arguments else EPSILON
    rstd = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    of_rstd = statistic_error(width, error)
    gradient, xhat = dy64 * weight, x * rstd
    product = gradient * xhat
    mean, mean_magnitude = product.mean(-1, keepdim=True), product.abs().mean(-1, keepdim=True)
    y = rmsnorm64(x, weight, eps)
    dx = rstd * (gradient - xhat * mean)
    # Each of gradient, xhat and mean carries its own error into the difference; then rstd multiplies it.
    magnitude = rstd * (gradient.abs() + xhat.abs() * mean_magnitude)
    of_dx = error(width) + 3 * of_rstd
    dweight, dweight_magnitude = (dy64 * xhat).sum(0), (dy64 * xhat).abs().sum(0)
    return {
        "output": Bounded(exact=y, allowed=allowed_error(y, y.abs(), of_rstd, 1, 2, dy.dtype)),
        "x": Bounded(exact=dx, allowed=allowed_error(dx, magnitude, of_dx, width, 8, dy.dtype)),
        "weight": Bounded(
            exact=dweight,
            allowed=allowed_error(dweight, dweight_magnitude, sum_error("chain-1", rows) + of_rstd, rows, 2, dy.dtype),
        ),
    }


def _exact_statistic(arguments: Arguments, _: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    x = arguments["x"].double()
    rstd = (x.square().mean(-1) + EPSILON).rsqrt()
    of_rstd = statistic_error(x.shape[-1], error)
    return {"output": Bounded(exact=rstd, allowed=allowed_error(rstd, rstd, of_rstd, x.shape[-1], 0, torch.float32))}


def _probe(function: Function, terms: int, rows: int, row: int, format: str, device: str) -> Probe:
    """Row `row` holds the numbers; eps is zero, so that the statistic shows the sum of their squares alone."""
    dtype = getattr(torch, format)
    weight = torch.ones(terms, dtype=dtype, device=device)
    batch = torch.ones(rows, terms, dtype=dtype, device=device)

    def run(values: np.ndarray) -> float:
        batch[row] = torch.from_numpy(values).to(dtype)
        return float(function(batch, weight, 0.0)[row])

    return run


def _encoding(terms: int) -> Encoding:
    """Squares, seen through rsqrt(sum / terms): one ulp of the sum shows where `terms` is a power of four."""
    if terms & (terms - 1) or terms.bit_length() % 2 == 0:
        raise ValueError(f"rmsnorm: the statistic shows its sum for 4, 16, 64, 256, ... terms, got {terms}")
    scale = np.float32(1.0) / np.float32(terms)
    return Encoding(
        one=1.0,
        small=2.0**-12,
        zero=0.0,
        leaves=lambda x: (x, x),
        finish=lambda total: evaluate("rsqrt", np.asarray(total, np.float32) * scale),
    )


def launches(backend: str, format: str) -> Sequence[Mapping[str, object]]:
    """Threads times instruction sets on the CPU; rows of a tile times warps by Triton."""
    if backend == "cpu":
        return cpu_launches()
    from samebits.ops._triton.rows import RowLaunch

    return [{"launch": RowLaunch(rows=rows, columns=columns, warps=warps)} for rows, columns, warps in TRITON_LAUNCHES]


def _resume(arguments: Arguments, dy: Tensor, sums: dict[str, Tensor] | None, backend: str) -> dict[str, Tensor]:
    x, weight = arguments["x"], arguments["weight"]
    sums = sums or {"weight": torch.zeros(weight.shape, dtype=torch.float32, device=x.device)}
    statistic = rmsnorm_statistic(x, weight, EPSILON, backend=backend)
    rmsnorm_weight_gradient_(sums["weight"], dy, x, statistic, backend=backend)
    return sums


def _of_torch(x: Tensor, weight: Tensor, eps: float = EPSILON) -> Tensor:
    """torch's own, whose second argument is the shape."""
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)


SPECS = {
    "rmsnorm": OperatorSpec(
        name="rmsnorm",
        row_arguments=("x",),
        shared_arguments=("weight",),
        shape_axes="MH",
        make=_make,
        exact=_exact,
        launches=launches,
        resume=_resume,
        own_numbers={"eps": (EPSILON, 1e-5, 1e-8, 2.0**-23, 1e-12, 0.0)},
        exact_zero_signs=True,
        aliases=("rms_norm",),
        stock=dict.fromkeys((torch.nn.functional.rms_norm, torch.rms_norm), _of_torch),
    ),
    "rmsnorm_statistic": OperatorSpec(
        name="rmsnorm_statistic",
        row_arguments=("x",),
        shared_arguments=("weight",),
        shape_axes="MH",
        make=_make,
        exact=_exact_statistic,
        launches=launches,
        differentiable=False,
        probe=_probe,
        encoding=_encoding,
    ),
}
