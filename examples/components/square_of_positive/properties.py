"""What the kernel must be, beside the promises: predicates that its contract names."""

from __future__ import annotations

import torch

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference


def nothing_for_negatives(call: Call, tolerance: Tolerance) -> str:
    """Whatever is not positive gives +0."""
    negative = -call.arguments["x"].abs()
    return difference(call.again(x=negative), torch.zeros_like(negative), tolerance, words="negatives")


def refuses_bad_input(call: Call, tolerance: Tolerance) -> str:
    """Whole numbers are refused in one line that says what is allowed."""
    said = call.refusal(x=call.arguments["x"].nan_to_num(0, 0, 0).clamp(-9, 9).to(torch.int64))
    return "" if "allowed: floating point" in said else f"int64 was taken, or refused without a reason: {said!r}"
