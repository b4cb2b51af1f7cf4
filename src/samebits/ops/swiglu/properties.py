"""What a SwiGLU must be, whatever it is built of: predicates that its contract names and the checker executes.

Each takes a call that happened and says in one line what is wrong, or nothing. With up = 1 it is the SiLU."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference, falls, not_refused
from samebits.ops.rounding import FLOAT32_ROUNDOFF, FLOAT32_TINY
from samebits.ops.swiglu.check import OF_SIGMOID

# Just below the least value of x sigmoid(x), which is -0.278464543.
LEAST = -0.27847


def _silu(call: Call, gate: Tensor) -> Tensor:
    return call.again(gate=gate, up=torch.ones_like(gate))


def silu_minus_its_mirror(call: Call, tolerance: Tolerance) -> str:
    """S(0) = 0, and S(x) - S(-x) = x: two sigmoids, two products, two stores, all relative to x."""
    x = call.arguments["gate"].nan_to_num()
    at_zero = _silu(call, torch.zeros_like(x))
    if bool((at_zero != 0).any()):
        return f"S(0) is {float(at_zero.flatten()[0])}; allowed: 0"
    info, narrow = torch.finfo(x.dtype), x.dtype != torch.float32
    stored, tiny = (info.eps / 2, info.smallest_normal * info.eps) if narrow else (0.0, FLOAT32_TINY)
    # A sigmoid below the smallest normal number is off by up to two of the smallest steps, and x lifts them.
    lifted = (1 + x.double().abs()) * 4 * FLOAT32_TINY + 2 * tiny
    allowed = x.double().abs() * (2 * OF_SIGMOID + FLOAT32_ROUNDOFF + 1.01 * stored) + lifted
    found = _silu(call, x).double() - _silu(call, -x).double()
    return difference(found, x.double(), tolerance, allowed=allowed, words="S(x) - S(-x)")


def silu_has_a_floor(call: Call, tolerance: Tolerance) -> str:
    """S >= -0.27847, rounded to the format."""
    y = _silu(call, call.arguments["gate"].nan_to_num())
    floor = torch.tensor(LEAST, dtype=y.dtype, device=y.device)
    below = ~(y >= floor)
    return f"{int(below.sum())} of {y.numel()} below {float(floor)}" if bool(below.any()) else ""


def silu_rises(call: Call, tolerance: Tolerance) -> str:
    """S never falls for positive x; not by a bit in 16 bits, by no more than the tolerance in float32."""
    return falls(_silu(call, call.arguments["gate"].nan_to_num().abs().sort(-1).values), tolerance)


def silu_is_x_or_zero_far_out(call: Call, tolerance: Tolerance) -> str:
    """Beyond 10 S is x, below -10 it is 0, but for the tolerance."""
    x = call.arguments["gate"].nan_to_num().float().clamp(-1e4, 1e4)
    far = torch.where(x >= 0, x + 10, x - 10).to(call.output.dtype)
    return difference(_silu(call, far), far.clamp(min=0), tolerance, words="beyond 10")


def fused_equals_unfused(call: Call, tolerance: Tolerance) -> str:
    """One call has the bits of the SiLU in float32, multiplied by up and then rounded to the format."""
    gate, up = call.arguments["gate"], call.arguments["up"]
    apart = (_silu(call, gate.float()) * up.float()).to(gate.dtype)
    return difference(call.output, apart, tolerance, words="fused against unfused")


def zeros_and_nothing(call: Call, tolerance: Tolerance) -> str:
    """A zero in gate or in up gives zero; no rows give no rows."""
    gate, up = call.arguments["gate"].nan_to_num(), call.arguments["up"].nan_to_num()
    for words, y in (("gate", call.again(gate=gate * 0.0, up=up)), ("up", call.again(gate=gate, up=up * 0.0))):
        if bool((y != 0).any()):
            return f"zeros in {words} give {float(y[y != 0][0])}; allowed: 0"
    empty = call.again(gate=gate[:0], up=up[:0])
    return "" if empty.shape == gate[:0].shape else f"no rows give shape {list(empty.shape)}"


def grows_with_the_gate(call: Call, tolerance: Tolerance) -> str:
    """|y| never falls while a positive gate grows and up stays, but for the tolerance."""
    gate = call.arguments["gate"].nan_to_num().abs().sort(-1).values
    up = call.arguments["up"].nan_to_num()[:, :1].expand(gate.shape).contiguous()
    return falls(call.again(gate=gate, up=up).abs(), tolerance)


def refuses_bad_input(call: Call, tolerance: Tolerance) -> str:
    """A wrong dtype, two dtypes, two shapes: one line each, and no output."""
    gate, up = call.arguments["gate"], call.arguments["up"]
    answers = {
        "both in float64": call.refusal(gate=gate.double(), up=up.double()),
        "whole numbers": call.refusal(gate=gate.nan_to_num().int(), up=up.nan_to_num().int()),
        "up of another dtype": call.refusal(up=up.double()),
        "up with one row more": call.refusal(up=torch.cat([up, up[:1]])),
    }
    return not_refused(answers)
