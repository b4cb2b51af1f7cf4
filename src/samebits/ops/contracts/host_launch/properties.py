"""What must be true of calls in C++: each is what Python's function does, and where anybody listens it is Python's."""

from __future__ import annotations

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance

WORDS = (
    "calls are not those that Python makes",
    "modes or kinds of tensors are not heard",
    "calls are launched in C++ that do more than launch",
)


def calls_are_pythons(call: Call, tolerance: Tolerance) -> str:
    """Function, grid, stream, each parameter and each descriptor on a stub; on a GPU each bit."""
    wanted = call.reference(*call.arguments.values()).tolist()
    for line, expected in zip(call.output.tolist(), wanted, strict=True):
        for word, count, allowed in zip(WORDS, line, expected, strict=True):
            if count != allowed:
                return f"{count} {word}; allowed: {int(allowed)}"
    return ""
