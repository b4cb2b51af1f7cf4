"""What a training run must do: stay finite, keep the clipped norm within its bound, and hide no NaN."""

from __future__ import annotations

import torch

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.model.contracts.small_model import cut
from samebits.model.weights import EMBEDDING
from samebits.train.contracts.train_stable import LOGGED, MAX_NORM


def stays_finite(call: Call, tolerance: Tolerance) -> str:
    """Loss, norms and weights are finite at each step, and no clipped norm is above the largest allowed."""
    bad = torch.nonzero(~call.output.isfinite())
    if len(bad):
        step, column = bad[0].tolist()
        return f"step {step + 1}: {LOGGED[column]} is {float(call.output[step, column])}; allowed: finite"
    after = call.output[:, LOGGED.index("norm after clipping")]
    most = MAX_NORM * (1 + float(tolerance.value or 0.0))
    if bool((after > most).any()):
        return f"step {int((after > most).nonzero()[0]) + 1}: norm after clipping is {float(after.max())}; most {most}"
    return ""


def shows_a_nan(call: Call, tolerance: Tolerance) -> str:
    """A NaN in the embedding of a token that is read reaches the log: the run is stopped at its first step."""
    weights = call.arguments["weights"].clone()
    cut(weights)[EMBEDDING][call.arguments["text"][0], 0] = torch.nan
    loss = float(call.again(weights=weights)[0, 0])
    return "" if loss != loss else f"a NaN in an embedding is logged as a loss of {loss}"
