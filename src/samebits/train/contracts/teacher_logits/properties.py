"""What kept logits must do: be the live ones of their own sequence, to the bit where all of them are kept."""

from __future__ import annotations

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference
from samebits.train.contracts.teacher_logits.check import TEMPERATURE, TOP_K


def are_the_live_ones(call: Call, tolerance: Tolerance) -> str:
    return difference(call.output, call.arguments["logits"], tolerance, words="logits")


def remainder_is_exact(call: Call, tolerance: Tolerance) -> str:
    """The largest logits have their bits, and all other tokens together have the probability that they had."""
    live, found = call.arguments["logits"], call.output
    order = live.sort(dim=-1, descending=True, stable=True).indices
    kept, others = order[..., :TOP_K], order[..., TOP_K:]
    wrong = int((found.gather(-1, kept) != live.gather(-1, kept)).sum())
    if wrong:
        return f"{wrong} of {kept.numel()} of the largest logits differ"
    both = [(each.double() / TEMPERATURE).softmax(-1).gather(-1, others).sum(-1) for each in (live, found)]
    return difference(both[1], both[0], tolerance, words="probability of all others")
