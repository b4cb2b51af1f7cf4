"""What clipping by the norm must be, whatever it is built of: predicates that its contract names.

Each takes a call that happened and says in one line what is wrong, or nothing. Every row is clipped by itself, to 1."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference, not_refused
from samebits.ops.grad_norm.check import MAX_NORM, of_norm
from samebits.ops.grad_norm.reference import SMALL
from samebits.ops.rounding import FLOAT32_ROUNDOFF

# Squares of what is smaller add up within float32, however long the row.
LARGEST = 1e17


def _tame(call: Call) -> Tensor:
    x = call.arguments["x"]
    return x.float().nan_to_num().clamp(-LARGEST, LARGEST).to(x.dtype)


def norm_is_bounded(call: Call, tolerance: Tolerance) -> str:
    """No row is longer than 1 afterwards, but for the error of its norm, of the scale and of what is stored."""
    y, info = call.again(x=_tame(call)), torch.finfo(call.output.dtype)
    width, narrow = y.shape[-1], y.dtype != torch.float32
    relative = of_norm(width, call.sum_error) + 4 * FLOAT32_ROUNDOFF + (info.eps / 2 if narrow else 0.0)
    allowed = MAX_NORM * (1 + 1.01 * relative) + math.sqrt(width) * info.smallest_normal * info.eps
    norms = y.double().square().sum(-1).sqrt()
    longer = ~(norms <= allowed)
    row = int(longer.int().argmax())
    return f"row {row} has norm {float(norms[row])} afterwards; allowed: {allowed}" if bool(longer.any()) else ""


def small_ones_keep_their_bits(call: Call, tolerance: Tolerance) -> str:
    """A row shorter than 1 is not touched."""
    x = _tame(call)
    # A power of two changes no fraction; where numbers become subnormal they are what they are.
    longest = x.double().square().sum(-1, keepdim=True).sqrt().clamp(min=0.25)
    small = (x.double() * torch.exp2(-torch.ceil(torch.log2(longest)) - 1)).to(x.dtype)
    return difference(call.again(x=small), small, tolerance, words="rows shorter than 1")


def scale_is_one_over_the_norm(call: Call, tolerance: Tolerance) -> str:
    """In float32 every row is multiplied by min(1, 1 / (norm + 1e-6)); a norm of 10 gives a tenth."""
    x = _tame(call).float()
    ten = torch.zeros_like(x)
    ten[:, -1] = 10.0
    for words, rows in (("scale", x), ("scale of norm 10", ten)):
        y, squares = call.again(x=rows).double(), rows.double().square().sum(-1)
        expected = (MAX_NORM / (squares.sqrt() + SMALL)).clamp(max=1.0)
        # Rows whose squares are lost in float32 are shorter than 1 and keep their bits.
        kept = squares > 1e-12
        scale = (y * rows.double()).sum(-1)[kept] / squares[kept]
        differs = difference(scale, expected[kept], tolerance, words=words)
        if differs:
            return differs
    return ""


def refuses_bad_input(call: Call, tolerance: Tolerance) -> str:
    """A wrong dtype, a largest norm that is none: one line each, and nothing is scaled."""
    answers = {
        "float64": call.refusal(x=call.arguments["x"].double()),
        "a largest norm below 0": call.refusal({"max_norm": -1.0}),
        "a largest norm that is not a number": call.refusal({"max_norm": math.nan}),
        "an infinite largest norm": call.refusal({"max_norm": math.inf}),
    }
    return not_refused(answers)
