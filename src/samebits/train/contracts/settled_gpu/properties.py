"""What must be true of a run's settings on a device: what fixes the order of sums is set before the first kernel."""

from __future__ import annotations

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.train.contracts.settled_gpu import SETTINGS


def set_before_the_first_launch(call: Call, tolerance: Tolerance) -> str:
    """At every operator each setting is what the first one found; operators ran on the device in every step."""
    expected = call.reference(*call.arguments.values()).tolist()
    words = (*SETTINGS, "steps with operators on the device")
    for name, found, wanted in zip(words, call.output.tolist(), expected, strict=True):
        if found != wanted:
            return f"{name}: {found}, wanted {wanted}"
    return ""
