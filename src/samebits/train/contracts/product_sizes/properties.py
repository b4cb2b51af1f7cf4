"""What must be true of calls that hand sizes over by position: each size where its kernel declares it."""

from __future__ import annotations

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance


def sizes_come_as_declared(call: Call, tolerance: Tolerance) -> str:
    """Of every call of a product's kernel, in the sources as they are."""
    wanted = call.reference(*call.arguments.values()).tolist()
    for part, ((calls, wrong), (expected, _)) in enumerate(zip(call.output.tolist(), wanted, strict=True)):
        if calls != expected:
            return f"part {part}: {calls} calls are understood, there are {int(expected)}"
        if wrong:
            return f"part {part}: {wrong} of {calls} calls hand sizes over in another order than their kernel declares"
    return ""
