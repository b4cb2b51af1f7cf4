"""What a late stream may change of a run's log: nothing."""

from __future__ import annotations

import torch

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.train.contracts.stream_sync import LOGGED


def a_late_stream_changes_nothing(call: Call, tolerance: Tolerance) -> str:
    """The log of the late run is that of a run in time, bit by bit, and its first line float64's."""
    exact = call.reference(**call.arguments)[0]
    late = call.output
    for name, found, wanted in zip(LOGGED, late[0].tolist(), exact.tolist(), strict=True):
        if abs(found - wanted) > float(tolerance.value or 0.0) * abs(wanted):
            return f"step 1: {name} is {found}; in float64 {wanted}"
    in_time = call.again(cycles=torch.zeros_like(call.arguments["cycles"]))
    differ = (late != in_time).nonzero()
    if len(differ):
        step, column = differ[0].tolist()
        found, wanted = float(late[step, column]), float(in_time[step, column])
        return f"step {step + 1}: {LOGGED[column]} is {found} where the stream is late and {wanted} where it is not"
    return ""
