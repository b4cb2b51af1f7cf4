"""What a computation in steps must do: give the bits of the pass over all tokens, whatever the steps."""

from __future__ import annotations

import torch

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference
from samebits.model.contracts.model_forward import forward
from samebits.model.contracts.model_forward.reference import allowed64


def is_the_whole_pass(call: Call, tolerance: Tolerance) -> str:
    """Every logit has the bits that a pass without a cache gives it."""
    whole = forward(call.arguments["ids"], call.arguments["weights"])
    return difference(call.output, whole, tolerance, words="the whole pass")


def steps_are_not_seen(call: Call, tolerance: Tolerance) -> str:
    """All at once through the cache, and token by token, give the same bits."""
    tokens = call.arguments["ids"].shape[1]
    for name, steps in {"at once": [tokens], "token by token": [1] * tokens}.items():
        wrong = difference(call.again(steps=torch.tensor(steps)), call.output, tolerance, words=name)
        if wrong:
            return wrong
    return ""


def matches_float64(call: Call, tolerance: Tolerance) -> str:
    """Every logit against float64, within what rounding does to its row."""
    exact = call.reference(*call.arguments.values())
    allowed = allowed64(call.arguments["ids"], call.arguments["weights"], exact)
    return difference(call.output, exact, tolerance, allowed=allowed, words="logits")
