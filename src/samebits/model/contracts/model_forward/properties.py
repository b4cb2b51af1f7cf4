"""What a forward pass must do: compute the formula, see no other sequence, and nothing that comes later."""

from __future__ import annotations

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference
from samebits.model.contracts.model_forward.reference import allowed64
from samebits.model.contracts.small_model import SMALL


def matches_float64(call: Call, tolerance: Tolerance) -> str:
    """Every logit against float64, within what rounding does to its row."""
    exact = call.reference(*call.arguments.values())
    allowed = allowed64(call.arguments["ids"], call.arguments["weights"], exact)
    return difference(call.output, exact, tolerance, allowed=allowed, words="logits")


def alone_is_beside_others(call: Call, tolerance: Tolerance) -> str:
    """The last sequence alone, and all of them in the opposite order, have the bits that they have in the batch."""
    ids = call.arguments["ids"]
    wrong = difference(call.again(ids=ids[-1:]), call.output[-1:], tolerance, words="the last sequence alone")
    return wrong or difference(call.again(ids=ids.flip(0)), call.output.flip(0), tolerance, words="in another order")


def later_tokens_are_not_seen(call: Call, tolerance: Tolerance) -> str:
    """The first half keeps its bits when every later token is another one, and when none follows."""
    ids = call.arguments["ids"]
    half = (ids.shape[1] + 1) // 2
    other = ids.clone()
    other[:, half:] = (other[:, half:] + 1) % SMALL.vocab_size
    first = call.output[:, :half]
    wrong = difference(call.again(ids=other)[:, :half], first, tolerance, words="before other tokens")
    return wrong or difference(call.again(ids=ids[:, :half].contiguous()), first, tolerance, words="before none")
