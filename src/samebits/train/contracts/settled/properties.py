"""What must be true of a run's settings: whatever fixes the order of sums is set before the first kernel runs."""

from __future__ import annotations

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.train.contracts.settled import SETTINGS


def set_before_the_first_kernel(call: Call, tolerance: Tolerance) -> str:
    """At every kernel each setting is what the first one found; kernels were seen in every step."""
    expected = call.reference(*call.arguments.values()).tolist()
    for name, found, wanted in zip((*SETTINGS, "steps with kernels"), call.output.tolist(), expected, strict=True):
        if found != wanted:
            return f"{name}: {found}, wanted {wanted}"
    return ""
