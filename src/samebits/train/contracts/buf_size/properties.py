"""What a call must do with a buffer that is one too small: refuse it, in one line, before anything is written."""

from __future__ import annotations

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance


def refuses_one_less(call: Call, tolerance: Tolerance, *, buffers: str) -> str:
    """Each named buffer, shorter by one along each of its axes while all else stays, is refused."""
    for name in buffers.split():
        whole = call.arguments[name]
        for axis, size in enumerate(whole.shape):
            short = whole.narrow(axis, 0, size - 1).contiguous()
            said = call.refusal(None, **{name: short})
            if not said:
                return f"{name} of shape {tuple(short.shape)} is taken; allowed: {tuple(whole.shape)}"
            if "\n" in said:
                return f"{name} of shape {tuple(short.shape)} is refused in more than one line"
    return ""
