"""How a checker drives `gelu`, by the error function and by tanh: exact values and bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from samebits.contracts.spec import Arguments, Bounded
from samebits.numerics.elementary import MAXIMUM_ULP
from samebits.ops.elementwise import element_spec
from samebits.ops.gelu import gelu
from samebits.ops.gelu.reference import (
    CUBIC,
    DENSITY,
    ROOT_TWO_OVER_PI,
    gelu64,
    gelu_tanh64,
    inner64,
    slope64,
    slope_tanh64,
)
from samebits.ops.rounding import FLOAT32_ROUNDOFF, FLOAT32_TINY, allowed_error

# Float64's own roundings in the exact values.
FLOAT64_STEPS = 16
OF_ERF, OF_TANH, OF_EXP = (MAXIMUM_ULP[name] * 2 * FLOAT32_ROUNDOFF for name in ("erf", "tanh", "exp"))
# What a relative error of the argument becomes: z erf'(z) stays below 0.49 and z tanh'(z) below 0.45, whatever z. The
# argument of erf has two roundings, that of tanh six.
OF_ERF_ARGUMENT = 2 * 0.49 * FLOAT32_ROUNDOFF
OF_TANH_ARGUMENT = 6 * 0.45 * FLOAT32_ROUNDOFF
# From here on tanh is exactly 1 in float32.
TANH_IS_ONE = 10.0


def gelu_tanh(x: Tensor) -> Tensor:
    """The second subject: a checker hands over tensors alone."""
    return gelu(x, "tanh")


def _bounded(
    exact: Tensor, magnitude: Tensor, relative: float, roundings: int, more: Tensor, dtype: torch.dtype
) -> Bounded:
    """`more` is an absolute error on top, that of subnormal numbers included."""
    return Bounded(
        exact=exact,
        # A hundredth more, for it passes the later roundings, too.
        allowed=allowed_error(exact, magnitude, relative, FLOAT64_STEPS, roundings, dtype) + 1.01 * more,
    )


def _subnormal(x: Tensor, dy: Tensor) -> Tensor:
    return (1 + x.abs()) * (1 + dy.abs()) * 4 * FLOAT32_TINY


def _exact(arguments: Arguments, dy: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    x, dy64 = arguments["x"].double(), dy.double()
    both = 1 + torch.erf(x * math.sqrt(0.5)).abs()
    # The exponent -x*x/2 has one rounding, which exp turns into a relative error of as many half-ulps as it is large.
    density = x.abs() * DENSITY * torch.exp(-0.5 * x * x) * (1 + 0.5 * x * x)
    of_erf, of_density = OF_ERF + OF_ERF_ARGUMENT, OF_EXP + 2 * FLOAT32_ROUNDOFF
    small = _subnormal(x, dy64)
    return {
        "output": _bounded(gelu64(x), 0.5 * x.abs() * both, of_erf, 3, small, dy.dtype),
        "x": _bounded(dy64 * slope64(x), dy64.abs() * (0.5 * both + density), of_erf + of_density, 4, small, dy.dtype),
    }


def _exact_tanh(arguments: Arguments, dy: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    x, dy64, z = arguments["x"].double(), dy.double(), inner64(arguments["x"])
    both = 1 + torch.tanh(z).abs()
    of_tanh = OF_TANH + OF_TANH_ARGUMENT
    steep = 0.5 * x.abs() * ROOT_TWO_OVER_PI * (1 + 3 * CUBIC * x * x)
    flank = 1 / torch.cosh(z).square()
    # 1 - t*t loses what t has lost, twice; where t is 1 it is 0, and off by what it should have been.
    lost = torch.where(z.abs() < TANH_IS_ONE, 2 * of_tanh, flank)
    small = _subnormal(x, dy64)
    # Six roundings in the factor beside 1 - t*t and in the product with it.
    relative = of_tanh + 6 * FLOAT32_ROUNDOFF
    return {
        "output": _bounded(gelu_tanh64(x), 0.5 * x.abs() * both, of_tanh, 3, small, dy.dtype),
        "x": _bounded(
            dy64 * slope_tanh64(x),
            dy64.abs() * (0.5 * both + steep * flank),
            relative,
            4,
            dy64.abs() * steep * lost + small,
            dy.dtype,
        ),
    }


SPECS = {"gelu": element_spec("gelu", ("x",), _exact), "gelu_tanh": element_spec("gelu_tanh", ("x",), _exact_tanh)}
