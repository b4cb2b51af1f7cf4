"""What a log must show: losses that do not rise once smoothed, and parts that account for the time of a step."""

from __future__ import annotations

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference
from samebits.train.contracts.run_log import WARMUP


def smoothed_loss_never_rises(call: Call, tolerance: Tolerance, *, window: int, horizon: int) -> str:
    """After the warm-up the average is never above the least of the steps before it within the horizon, but for the
    tolerance. There is a loss for every step, and each is a number."""
    steps = int(call.arguments["steps"])
    if len(call.output) != steps or not bool(call.output.isfinite().all()):
        return f"{len(call.output)} losses, {int(call.output.isfinite().sum())} of them finite; allowed: {steps}"
    smooth = call.reference(call.output, window)[WARMUP:].tolist()
    for place, late in enumerate(smooth):
        least = min(smooth[max(0, place - horizon) : place + 1])
        if late > least * (1 + float(tolerance.value or 0.0)):
            step = WARMUP + place + 1
            return f"step {step}: the smoothed loss is {late:.4f} and was {least:.4f} within {horizon} steps"
    return ""


def parts_cover_a_step(call: Call, tolerance: Tolerance) -> str:
    """Named parts have the time of the steps, but for the tolerance."""
    expected = call.reference(*call.arguments.values())
    wrong = (
        "" if int(call.output[0]) == int(expected[0]) else f"{int(call.output[0])} steps of {int(expected[0])} timed"
    )
    return wrong or difference(call.output[1:], expected[1:], tolerance, words="twentieths of the steps' time")
