"""What a SwiGLU must be, whatever it is built of: predicates that its contract names and the checker executes.

Each takes a call that happened and says in one line what is wrong, or nothing. With up = 1 it is the SiLU."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference, ulp
from samebits.ops.rounding import FLOAT32_ROUNDOFF, FLOAT32_TINY
from samebits.ops.swiglu.check import OF_SIGMOID

# Just below the least value of x sigmoid(x), which is -0.278464543.
LEAST = -0.27847


def _finite(values: Tensor) -> Tensor:
    return values.nan_to_num()


def _silu(call: Call, gate: Tensor) -> Tensor:
    return call.again(gate=gate, up=torch.ones_like(gate))


def silu_minus_its_mirror(call: Call, tolerance: Tolerance) -> str:
    """S(0) = 0, and S(x) - S(-x) = x: two sigmoids, two products, two stores, all relative to x."""
    x = _finite(call.arguments["gate"])
    at_zero = _silu(call, torch.zeros_like(x))
    if bool((at_zero != 0).any()):
        return f"S(0) is {float(at_zero.flatten()[0])}; allowed: 0"
    stored = 0.0 if x.dtype == torch.float32 else torch.finfo(x.dtype).eps / 2
    tiny = FLOAT32_TINY if x.dtype == torch.float32 else torch.finfo(x.dtype).smallest_normal * torch.finfo(x.dtype).eps
    # A sigmoid below the smallest normal number is off by up to two of the smallest steps, and x lifts them.
    lifted = (1 + x.double().abs()) * 4 * FLOAT32_TINY + 2 * tiny
    allowed = x.double().abs() * (2 * OF_SIGMOID + FLOAT32_ROUNDOFF + 1.01 * stored) + lifted
    found = _silu(call, x).double() - _silu(call, -x).double()
    return difference(found, x.double(), tolerance, allowed=allowed, words="S(x) - S(-x)")


def silu_has_a_floor(call: Call, tolerance: Tolerance) -> str:
    """S >= -0.27847, rounded to the format."""
    y = _silu(call, _finite(call.arguments["gate"]))
    floor = torch.tensor(LEAST, dtype=y.dtype, device=y.device)
    below = ~(y >= floor)
    return f"{int(below.sum())} of {y.numel()} below {float(floor)}" if bool(below.any()) else ""


def silu_rises(call: Call, tolerance: Tolerance) -> str:
    """S never falls for positive x; not by a bit in 16 bits, by no more than the tolerance in float32."""
    x = _finite(call.arguments["gate"]).abs().sort(-1).values
    return _falls(_silu(call, x), tolerance)


def _falls(y: Tensor, tolerance: Tolerance) -> str:
    along = y.double()
    slack = float(tolerance.value or 0.0) * ulp(along[..., :-1], y.dtype) if y.dtype == torch.float32 else 0.0
    falls = along[..., :-1] - along[..., 1:] > slack
    if not bool(falls.any()):
        return ""
    index = tuple(int(place[0]) for place in torch.nonzero(falls, as_tuple=True))
    return f"falls at {list(index)} of the sorted row, from {float(along[index])}"


def silu_is_x_or_zero_far_out(call: Call, tolerance: Tolerance) -> str:
    """Beyond 10 S is x, below -10 it is 0, but for the tolerance."""
    x = _finite(call.arguments["gate"]).float().clamp(-1e4, 1e4)
    far = torch.where(x >= 0, x + 10, x - 10).to(call.output.dtype)
    return difference(_silu(call, far), far.clamp(min=0), tolerance, words="beyond 10")


def fused_equals_unfused(call: Call, tolerance: Tolerance) -> str:
    """One call has the bits of the SiLU in float32, multiplied by up and then rounded to the format."""
    gate, up = call.arguments["gate"], call.arguments["up"]
    apart = (_silu(call, gate.float()) * up.float()).to(gate.dtype)
    return difference(call.output, apart, tolerance, words="fused against unfused")


def zeros_and_nothing(call: Call, tolerance: Tolerance) -> str:
    """A zero in gate or in up gives zero; no rows give no rows."""
    gate, up = _finite(call.arguments["gate"]), _finite(call.arguments["up"])
    for words, y in (("gate", call.again(gate=gate * 0.0, up=up)), ("up", call.again(gate=gate, up=up * 0.0))):
        if bool((y != 0).any()):
            return f"zeros in {words} give {float(y[y != 0][0])}; allowed: 0"
    empty = call.again(gate=gate[:0], up=up[:0])
    return "" if empty.shape == gate[:0].shape else f"no rows give shape {list(empty.shape)}"


def grows_with_the_gate(call: Call, tolerance: Tolerance) -> str:
    """|y| never falls while a positive gate grows and up stays, but for the tolerance."""
    gate = _finite(call.arguments["gate"]).abs().sort(-1).values
    up = _finite(call.arguments["up"])[:, :1].expand(gate.shape).contiguous()
    return _falls(call.again(gate=gate, up=up).abs(), tolerance)


def leaves_its_inputs_alone(call: Call, tolerance: Tolerance) -> str:
    """Gate and up in one memory give what separate ones give, and neither is written."""
    gate, up = call.arguments["gate"].clone(), call.arguments["up"].clone()
    together = call.again(gate=gate, up=gate)
    differs = difference(together, call.again(gate=gate, up=gate.clone()), tolerance, words="gate and up in one memory")
    again = differs or difference(call.again(gate=gate, up=up), call.output, tolerance, words="the same call again")
    written = again or difference(up, call.arguments["up"], tolerance, words="up after the call")
    return written or difference(gate, call.arguments["gate"], tolerance, words="gate after the call")


def refuses_bad_input(call: Call, tolerance: Tolerance) -> str:
    """A wrong dtype, two dtypes, two shapes: one line each, and no output."""
    gate, up = call.arguments["gate"], call.arguments["up"]
    answers = {
        "both in float64": call.refusal(gate=gate.double(), up=up.double()),
        "whole numbers": call.refusal(gate=_finite(gate).int(), up=_finite(up).int()),
        "up of another dtype": call.refusal(up=up.double()),
        "up with one row more": call.refusal(up=torch.cat([up, up[:1]])),
    }
    taken = [what for what, said in answers.items() if not said or "\n" in said]
    return f"not refused in one line: {', '.join(taken)}" if taken else ""
