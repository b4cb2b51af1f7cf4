"""What must be true of every launch: the largest index is that of the last element of its buffer, never one more."""

from __future__ import annotations

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.train.contracts.launch_indices import UNDECIDED, asked
from samebits.train.contracts.launch_indices.reference import kernels

WORDS = ("kernels whose launch nobody describes", "accesses outside their buffer", "buffers that could be shorter")


def indices_stay_below_their_lengths(call: Call, tolerance: Tolerance) -> str:
    """Of every kernel in the sources: no access outside for any size, and every buffer as long as it must be."""
    gone = sorted(set(UNDECIDED) - set(kernels()))
    if gone:
        return f"{gone[0]} is said to be undecided, and is no kernel"
    wanted = call.reference(*call.arguments.values()).tolist()
    for part, (line, expected) in enumerate(zip(call.output.tolist(), wanted, strict=True)):
        for word, count, allowed in zip(WORDS, line, expected, strict=True):
            if count != allowed:
                return f"{count} {word}, among {', '.join(asked()[part :: len(wanted)])}"
    return ""
