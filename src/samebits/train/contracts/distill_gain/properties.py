"""What a teacher must do: make its students better than they are alone, by more than chance."""

from __future__ import annotations

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance


def helps(call: Call, tolerance: Tolerance) -> str:
    """Students with a teacher have the smaller loss on held-out text, pair by pair."""
    if not bool(call.output.isfinite().all()):
        return f"{int(call.output.isfinite().sum())} of {call.output.numel()} losses are finite; allowed: all"
    p = float(call.reference(call.output))
    most = float(tolerance.value or 0.0)
    if p < most:
        return ""
    without, taught = call.output.mean(1).tolist()
    return f"mean loss {without:.4f} without, {taught:.4f} with a teacher: p is {p:.3g}; allowed: below {most:g}"
