"""How a checker drives `swiglu`: exact values and bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from samebits.contracts.spec import Arguments, Bounded
from samebits.numerics.elementary import MAXIMUM_ULP
from samebits.ops.elementwise import element_spec
from samebits.ops.rounding import FLOAT32_ROUNDOFF, FLOAT32_TINY, allowed_error
from samebits.ops.swiglu.reference import swiglu64

# Float64's own roundings in the exact values.
FLOAT64_STEPS = 8
OF_SIGMOID = MAXIMUM_ULP["sigmoid"] * 2 * FLOAT32_ROUNDOFF


def _exact(arguments: Arguments, dy: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    gate, up, dy64 = arguments["gate"].double(), arguments["up"].double(), dy.double()
    s = gate.sigmoid()
    flow, dup = dy64 * up, dy64 * gate * s
    # gate * s * (1 - s) carries the error of s twice, the second time beside the 1 that it is taken from.
    magnitude = flow.abs() * s * (1 + gate.abs())
    # A sigmoid below the smallest normal number is off by up to two of the smallest steps, and gate lifts them.
    lifted = (1 + gate.abs()) * 4 * FLOAT32_TINY

    def bounded(exact: Tensor, size: Tensor, of_sigmoid: int, roundings: int, factor: Tensor) -> Bounded:
        relative = of_sigmoid * OF_SIGMOID
        allowed = allowed_error(exact, size, relative, FLOAT64_STEPS, roundings, dy.dtype)
        return Bounded(exact=exact, allowed=allowed + lifted * (1 + factor.abs()))

    y = swiglu64(gate, up)
    return {
        "output": bounded(y, y.abs(), 1, 2, up),
        "gate": bounded(flow * (s + gate * s * (1 - s)), magnitude, 2, 5, flow),
        "up": bounded(dup, dup.abs(), 1, 2, dy64),
    }


SPECS = {"swiglu": element_spec("swiglu", ("gate", "up"), _exact)}
