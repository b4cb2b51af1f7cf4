"""What a run of 24 layers must do for a hundred steps: stay finite, and keep the clipped norm within its bound."""

from __future__ import annotations

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.train.contracts.train_stable_350m import LOGGED


def stays_finite(call: Call, tolerance: Tolerance) -> str:
    most = call.reference(**call.arguments) * (1 + float(tolerance.value or 0.0))
    bad = (~call.output.isfinite() | (call.output > most)).nonzero()
    if not len(bad):
        return ""
    step, column = bad[0].tolist()
    allowed = float(most[step, column])
    return f"step {step + 1}: {LOGGED[column]} is {float(call.output[step, column])}; allowed: a number up to {allowed}"
