"""What a head, and a weight tied to the embedding, must be: predicates that the contract names.

Whole numbers of few bits make sums exact in every order, so that what is asked of a tied gradient is bits."""

from __future__ import annotations

from typing import Any

import torch

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference

# Products of these, and sums of some thousand of them, are exact in float32.
WHOLE = 8.0


def tied_is_an_explicit_copy(call: Call, tolerance: Tolerance) -> str:
    """The embedding's own table as the head: a copy of it, and the same table laid out by columns, give equal bits."""
    weight = call.arguments["weight"]
    for words, other in (("a copy", weight.clone()), ("the table by columns", weight.T.contiguous().T)):
        wrong = difference(call.again(weight=other), call.output, tolerance, words=words)
        if wrong:
            return wrong
    return ""


def identity_gives_hidden_back(call: Call, tolerance: Tolerance) -> str:
    """The table [V, K] = 1 gives hidden, in float32 whatever it is stored in; -0 may become +0."""
    hidden = call.arguments["hidden"].nan_to_num()
    found = call.again(hidden=hidden, weight=torch.eye(hidden.shape[-1], dtype=hidden.dtype, device=hidden.device))
    return difference(found + 0.0, hidden.float() + 0.0, tolerance, words="hidden through the identity")


def refuses_bad_input(call: Call, tolerance: Tolerance) -> str:
    """A table laid out [K, V], wrong dtypes and a vector for a table: one line each."""
    hidden, weight = call.arguments.values()
    depth, vocabulary = hidden.shape[-1], weight.shape[0]
    bad: dict[str, dict[str, Any]] = {
        "a table [K, V]": {"weight": torch.zeros(depth, vocabulary + depth, dtype=weight.dtype, device=weight.device)},
        "a vector for a table": {"weight": weight[0]},
        "a table of float64": {"weight": weight.double()},
        "hidden of whole numbers": {"hidden": torch.ones_like(hidden, dtype=torch.int64)},
    }
    for words, changed in bad.items():
        said = call.refusal(None, **changed)
        if not said or "\n" in said:
            return f"{words} is accepted" if not said else f"{words}: refused in more than one line"
    return ""


def tied_gradient_is_the_sum(call: Call, tolerance: Tolerance) -> str:
    """dW = dlogits^T hidden + the embedding's part, bit for bit where every sum is exact."""
    whole = {
        name: value.nan_to_num().clamp(-WHOLE, WHOLE).round() if value.is_floating_point() else value
        for name, value in call.arguments.items()
    }
    hidden, dlogits, ids, dembedding = whole.values()
    expected = dlogits.double().T @ hidden.double()
    expected.index_add_(0, ids, dembedding.double())
    # -0 cannot end a chain that starts at +0, and a product of float64 may give it.
    return difference(call.again(None, **whole), (expected + 0.0).float(), tolerance, words="tied gradient")
