"""What must be true of every function of the C++ library: it touches nothing beside its buffers."""

from __future__ import annotations

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance

WORDS = ("functions that no call reaches", "calls beside a buffer", "shorter buffers that go unseen")


def buffers_are_kept(call: Call, tolerance: Tolerance) -> str:
    """Each function is called on each instruction set, and pages beside buffers are touched by planted faults alone."""
    wanted = call.reference(*call.arguments.values()).tolist()
    for line, expected in zip(call.output.tolist(), wanted, strict=True):
        for word, count, allowed in zip(WORDS, line, expected, strict=True):
            if count != allowed:
                return f"{count} {word}; allowed: {int(allowed)}"
    return ""
