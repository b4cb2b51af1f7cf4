"""What a GELU must be, whatever it is built of: predicates that its contract names and the checker executes.

Each takes a call that happened and says in one line what is wrong, or nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference, falls, not_refused
from samebits.ops.gelu.check import OF_ERF, OF_ERF_ARGUMENT
from samebits.ops.gelu.reference import gelu64
from samebits.ops.rounding import FLOAT32_ROUNDOFF, FLOAT32_TINY

# Just below the least values: -0.169971 by the error function, -0.170041 by tanh.
LEAST = -0.17005


def _finite(call: Call) -> Tensor:
    return call.arguments["x"].nan_to_num()


def minus_its_mirror(call: Call, tolerance: Tolerance) -> str:
    """G(x) - G(-x) = x: two error functions, two sums, two products, two stores, all relative to x."""
    x, info = _finite(call), torch.finfo(call.output.dtype)
    narrow = x.dtype != torch.float32
    relative = OF_ERF + OF_ERF_ARGUMENT + 2 * FLOAT32_ROUNDOFF + (1.01 * info.eps / 2 if narrow else 0.0)
    tiny = 4 * FLOAT32_TINY + (info.smallest_normal * info.eps if narrow else 0.0)
    found = call.again(x=x).double() - call.again(x=-x).double()
    allowed = x.double().abs() * relative + 2 * tiny
    return difference(found, x.double(), tolerance, allowed=allowed, words="G(x) - G(-x)")


def has_a_floor(call: Call, tolerance: Tolerance) -> str:
    """G >= -0.17005 rounded to the format, and G >= 0 for x >= 0."""
    x = _finite(call)
    y = call.again(x=x)
    floor = torch.where(x >= 0, 0.0, torch.tensor(LEAST, dtype=y.dtype, device=y.device))
    below = ~(y >= floor)
    return f"{int(below.sum())} of {y.numel()} below their floor; first {float(y[below][0])}" if below.any() else ""


def rises(call: Call, tolerance: Tolerance) -> str:
    """G never falls for positive x; not by a bit in 16 bits, by no more than the tolerance in float32."""
    y = call.again(x=_finite(call).abs().sort(-1).values)
    return falls(y, tolerance)


def close_to_the_error_function(call: Call, tolerance: Tolerance) -> str:
    """In float32 the tanh form lies beside the equation by the error function."""
    x = _finite(call).float()
    return difference(call.again(x=x), gelu64(x), tolerance, words="tanh against the error function")


def is_x_or_zero_far_out(call: Call, tolerance: Tolerance) -> str:
    """Beyond 10 G is x, below -10 it is 0, and G(0) = 0."""
    x = _finite(call).float().clamp(-1e4, 1e4)
    far = torch.where(x > 0, x + 10, torch.where(x < 0, x - 10, 0.0)).to(call.output.dtype)
    return difference(call.again(x=far), far.clamp(min=0), tolerance, words="beyond 10, or 0")


def refuses_bad_input(call: Call, tolerance: Tolerance) -> str:
    """A wrong dtype, an approximation that nobody knows: one line each, and no output."""
    x = call.arguments["x"]
    answers = {
        "x in float64": call.refusal(x=x.double()),
        "whole numbers": call.refusal(x=_finite(call).int()),
        "another approximation": call.refusal({"approximate": "sigmoid"}),
    }
    return not_refused(answers)
