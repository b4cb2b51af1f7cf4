"""How a checker drives `softmax` and `log_softmax`: inputs, exact values and bounds, launch numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from samebits.contracts.spec import Arguments, Bounded, OperatorSpec
from samebits.native.launch_numbers import cpu_launches
from samebits.numerics.elementary import MAXIMUM_ULP
from samebits.numerics.recipes import make
from samebits.ops.rounding import FLOAT32_ROUNDOFF, FLOAT32_TINY, allowed_error
from samebits.ops.softmax.reference import log_softmax64, softmax64

CPU_THREADS = (1, 3, 7)
# Rows, columns whose loads are under way together, warps.
TRITON_LAUNCHES = ((1, 256, 1), (1, 2048, 8), (4, 512, 4), (2, 1024, 16))
# An ulp is at most two unit roundoffs of the value.
EXP_ERROR = MAXIMUM_ULP["exp"] * 2 * FLOAT32_ROUNDOFF
LOG_ERROR = MAXIMUM_ULP["log"] * 2 * FLOAT32_ROUNDOFF


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    return {"x": torch.from_numpy(make(recipe, shape, seed, format)).to(getattr(torch, format))}


def _rounded(exact: Tensor, error: Tensor, terms: int, dtype: torch.dtype) -> Tensor:
    """What is allowed where `error` is the absolute error just before the last rounding."""
    return allowed_error(exact, error, 1.0, terms, 1, dtype)


def _of_exponential(argument: Tensor, error: Tensor) -> Tensor:
    """Error of the function exp, given that of its argument: exp grows, so the far end is the worst."""
    return ((argument + error).exp() - argument.exp()) + (argument + error).exp() * EXP_ERROR + FLOAT32_TINY


def _of_sum(x: Tensor, error: Callable[[int], float]) -> tuple[Tensor, Tensor, Tensor]:
    """(x - max, the error of each exponential, the relative error of their sum, which is at least 1)."""
    d = x - x.amax(-1, keepdim=True)
    of_e = _of_exponential(d, FLOAT32_ROUNDOFF * d.abs())
    total, total_error = d.exp().sum(-1, keepdim=True), of_e.sum(-1, keepdim=True)
    return d, of_e, (total_error + error(x.shape[-1]) * (total + total_error)) / total


def _exact(arguments: Arguments, dy: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    x, dy64 = arguments["x"].double(), dy.double()
    width, dtype, u = x.shape[-1], dy.dtype, FLOAT32_ROUNDOFF
    d, of_e, of_total = _of_sum(x, error)
    y = softmax64(x)
    # The exponential's own error, the sum's, the reciprocal's and the product's.
    shrunk = of_e / d.exp().sum(-1, keepdim=True)
    of_y = _rounded(y, (y + shrunk) * (1 + of_total) * (1 + 2 * u) / (1 - of_total) - y + FLOAT32_TINY, width, dtype)
    c = (dy64 * y).sum(-1, keepdim=True)
    of_c = (dy64.abs() * of_y).sum(-1, keepdim=True)
    of_c = of_c + error(width) * (dy64.abs() * (y + of_y)).sum(-1, keepdim=True) + width * FLOAT32_TINY
    slope = dy64 - c
    of_slope = of_c + u * (slope.abs() + of_c)
    dx = y * slope
    of_dx = of_y * (slope.abs() + of_slope) + y * of_slope
    of_dx = of_dx + u * (dx.abs() + of_dx)
    return {"output": Bounded(exact=y, allowed=of_y), "x": Bounded(exact=dx, allowed=_rounded(dx, of_dx, width, dtype))}


def _exact_log(arguments: Arguments, dy: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    x, dy64 = arguments["x"].double(), dy.double()
    width, dtype, u = x.shape[-1], dy.dtype, FLOAT32_ROUNDOFF
    d, _, of_total = _of_sum(x, error)
    y, logarithm = log_softmax64(x), d.exp().sum(-1, keepdim=True).log()
    of_log = of_total / (1 - of_total)
    of_log = of_log + LOG_ERROR * (logarithm + of_log) + FLOAT32_TINY
    of_y = u * d.abs() + of_log
    of_y = _rounded(y, of_y + u * (y.abs() + of_y), width, dtype)
    c, of_c = dy64.sum(-1, keepdim=True), error(width) * dy64.abs().sum(-1, keepdim=True)
    dx = dy64 - y.exp() * c
    of_share = _of_exponential(y, of_y)
    of_dx = of_share * (c.abs() + of_c) + y.exp() * of_c
    of_dx = of_dx + u * (dx.abs() + of_dx)
    return {"output": Bounded(exact=y, allowed=of_y), "x": Bounded(exact=dx, allowed=_rounded(dx, of_dx, width, dtype))}


def launches(backend: str, format: str) -> Sequence[Mapping[str, object]]:
    """Threads times instruction sets on the CPU; rows, columns and warps of a program by Triton."""
    if backend == "cpu":
        return cpu_launches(CPU_THREADS)
    from samebits.ops._triton.rows import RowLaunch

    return [{"launch": RowLaunch(rows=rows, columns=columns, warps=warps)} for rows, columns, warps in TRITON_LAUNCHES]


SPECS = {
    "softmax": OperatorSpec(
        name="softmax",
        row_arguments=("x",),
        shared_arguments=(),
        shape_axes="MH",
        make=_make,
        exact=_exact,
        launches=launches,
        exact_zero_signs=True,
    ),
    "log_softmax": OperatorSpec(
        name="log_softmax",
        row_arguments=("x",),
        shared_arguments=(),
        shape_axes="MH",
        make=_make,
        exact=_exact_log,
        launches=launches,
    ),
}
