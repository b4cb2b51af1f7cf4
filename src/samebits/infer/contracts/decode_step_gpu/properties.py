"""What the step for Hopper must do: give the bits of the plain step, step after step, and keep the same keys."""

from __future__ import annotations

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference


def is_the_plain_step(call: Call, tolerance: Tolerance) -> str:
    """Every logit of every step, and every key and value behind it."""
    return difference(call.output, call.reference(*call.arguments.values()), tolerance, words="the plain step")
