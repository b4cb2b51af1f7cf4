"""What must be true of every launch of attention: the largest index is that of the last element of its buffer."""

from __future__ import annotations

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.train.contracts.attention_indices import ELSEWHERE, UNDECIDED, asked
from samebits.train.contracts.attention_indices.reference import kernels
from samebits.train.contracts.launch_indices.properties import WORDS


def indices_stay_below_their_lengths(call: Call, tolerance: Tolerance) -> str:
    """Of every kernel in the sources: no access outside for any size, and every buffer as long as it must be."""
    gone = sorted((set(UNDECIDED) | ELSEWHERE) - set(kernels()))
    if gone:
        return f"{gone[0]} is said to be left out, and is no kernel"
    wanted = call.reference(*call.arguments.values()).tolist()
    for part, (line, expected) in enumerate(zip(call.output.tolist(), wanted, strict=True)):
        for word, count, allowed in zip(WORDS, line, expected, strict=True):
            if count != allowed:
                return f"{count} {word}, among {', '.join(asked()[part :: len(wanted)])}"
    return ""
