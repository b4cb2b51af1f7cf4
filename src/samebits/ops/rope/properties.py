"""What a rotary embedding must be, whatever it is built of: predicates that its contract names and a checker executes.

Each takes a call that happened and says in one line what is wrong, or nothing."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference, not_refused
from samebits.ops.rope import LARGEST_POSITION
from samebits.ops.rounding import FLOAT32_ROUNDOFF

# How far a key stands from its query, at most.
DISTANCES = 97
LARGEST = 2.0**14


def _tame(call: Call) -> Tensor:
    """Numbers small enough for a pair's length to stay within any format."""
    x = call.arguments["x"]
    return x.float().nan_to_num().clamp(-LARGEST, LARGEST).to(x.dtype)


def _norm(x: Tensor) -> Tensor:
    return x.double().square().sum(-1).sqrt()


def _stored(call: Call) -> float:
    """The relative error of storing a result in a narrower format."""
    dtype = call.output.dtype
    return 0.0 if dtype == torch.float32 else 1.01 * torch.finfo(dtype).eps / 2


def _tiny(call: Call) -> float:
    """What a head may lose to numbers below the smallest normal one."""
    info = torch.finfo(call.output.dtype)
    return 4 * math.sqrt(call.output.shape[-1]) * info.smallest_normal * info.eps


def keeps_the_norm(call: Call, tolerance: Tolerance) -> str:
    """A rotation keeps every head's length."""
    x = _tame(call)
    allowed = _norm(x) * (8 * FLOAT32_ROUNDOFF + _stored(call)) + _tiny(call)
    return difference(_norm(call.again(x=x)), _norm(x), tolerance, allowed=allowed, words="norm of a head")


def products_depend_on_distance(call: Call, tolerance: Tolerance) -> str:
    """<R(q, m), R(k, n)> = <q, R(k, n - m)>, q on the right not turned at all.

    The phase is rounded in proportion to the position: a fixed tolerance would be false for late tokens."""
    q, near = _tame(call), call.arguments["positions"]
    k, distance = q.roll(1, 0), torch.arange(len(near), device=near.device) % DISTANCES
    left = (call.again(x=q).double() * call.again(x=k, positions=near + distance).double()).sum(-1)
    right = (q.double() * call.again(x=k, positions=distance).double()).sum(-1)
    of_phases = FLOAT32_ROUNDOFF * (16 + 3 * (near + near + distance + distance)).double()[:, None]
    sizes = _norm(q) * _norm(k)
    allowed = sizes * (of_phases + 3 * _stored(call)) + (_norm(q) + _norm(k) + 1) * 2 * _tiny(call)
    return difference(left, right, tolerance, allowed=allowed, words="<R(q, m), R(k, n)>")


def position_zero_changes_nothing(call: Call, tolerance: Tolerance) -> str:
    """At position 0 every bit stays, but for the sign of a zero."""
    x = _tame(call)
    found = call.again(x=x, positions=torch.zeros_like(call.arguments["positions"]))
    return difference(found + 0.0, x + 0.0, tolerance, words="at position 0")


def backward_undoes_forward(call: Call, tolerance: Tolerance) -> str:
    """What flows back of the turned heads is the heads: the same angles the other way."""
    x = _tame(call)
    back = call.gradients(call.again(x=x), ["x"], x=x)["x"]
    # An element is off in proportion to the length of its pair, which a head's is not below.
    allowed = (_norm(x) * (16 * FLOAT32_ROUNDOFF + 2 * _stored(call)) + 2 * _tiny(call))[..., None]
    return difference(back, x, tolerance, allowed=allowed.expand(x.shape), words="there and back")


def heads_are_alike(call: Call, tolerance: Tolerance) -> str:
    """A head alone has the bits it has among others."""
    x, y = call.arguments["x"], call.output
    for head in range(x.shape[1]):
        alone = call.again(x=x[:, head : head + 1])
        differs = difference(alone, y[:, head : head + 1], tolerance, words=f"head {head} alone")
        if differs:
            return differs
    return ""


def refuses_bad_input(call: Call, tolerance: Tolerance) -> str:
    """Dtypes, shapes, positions and numbers that make no sense: one line each, and no output."""
    x, positions = call.arguments["x"], call.arguments["positions"]
    answers = {
        "x in float64": call.refusal(x=x.double()),
        "an odd head": call.refusal(x=x[..., :-1]),
        "positions that are no whole numbers": call.refusal(positions=positions.float()),
        "one position too many": call.refusal(positions=torch.cat([positions, positions[:1]])),
        "a position below 0": call.refusal(positions=positions - LARGEST_POSITION),
        "a position beyond 2^24": call.refusal(positions=positions + LARGEST_POSITION + 1),
        "theta of 1": call.refusal({"theta": 1.0}),
        "another layout": call.refusal({"layout": "neighbours"}),
    }
    return not_refused(answers)
