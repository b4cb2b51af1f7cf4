"""What a selected log-probability must be, whatever it is built of: predicates that its contract names."""

from __future__ import annotations

import math
from typing import Any

import torch

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference
from samebits.ops.lm_head import lm_head
from samebits.ops.logprob.check import IGNORED
from samebits.ops.logprob.reference import BLOCK
from samebits.ops.softmax import log_softmax

BITWISE = Tolerance(kind="bitwise")


def is_gather_of_log_softmax(call: Call, tolerance: Tolerance) -> str:
    """What log_softmax of the head's logits has at the token: bits within one block, where the trees are equal."""
    hidden, weight, ids = call.arguments.values()
    logits = lm_head(hidden, weight)
    gathered = log_softmax(logits).gather(1, ids.clamp(min=0)[:, None])[:, 0]
    expected, known = torch.where(ids == IGNORED, 0.0, gathered), logits.isfinite().all(-1)
    # Two log-sum-exps, u (3 R + 4 ln n) + gamma(d) each, and the roundings of two differences.
    unit, vocabulary = 2.0**-24, weight.shape[0]
    height = BLOCK.bit_length() + -(-vocabulary // BLOCK)
    gap = (logits.double().amax(-1) - logits.double().amin(-1)).clamp(max=104.0)
    lse = unit * (3 * gap + 4 * math.log(vocabulary) + 4) + height * unit / (1 - height * unit)
    allowed = 2 * lse + 4 * unit * expected.double().abs()
    judged_as = BITWISE if vocabulary <= BLOCK else tolerance
    return difference(call.output[known], expected[known], judged_as, allowed=allowed[known], words="gathered")


def is_not_positive(call: Call, tolerance: Tolerance) -> str:
    """No log-probability above 0, without slack: the sum contains exp(0)."""
    above = call.output > 0
    return f"{int(above.sum())} of {above.numel()} above 0; first {float(call.output[above][0])}" if above.any() else ""


def sampler_is_trainer(call: Call, tolerance: Tolerance) -> str:
    """A token scored alone, as it was sampled, has the bits it has in the trainer's batch with gradients."""
    hidden, ids = call.arguments["hidden"], call.arguments["ids"]
    trained = call.output
    for row in sorted({0, len(ids) // 3, len(ids) // 2, len(ids) - 1}):
        alone = call.again(hidden=hidden[row : row + 1], ids=ids[row : row + 1])
        wrong = difference(alone, trained[row : row + 1], tolerance, words=f"row {row} alone")
        if wrong:
            return wrong
    packed = call.again(hidden=hidden.flip(0)[None], ids=ids.flip(0)[None])
    return difference(packed[0].flip(0), trained, tolerance, words="packed into one sequence")


def masked_rows_are_nothing(call: Call, tolerance: Tolerance) -> str:
    """A masked position gives +0 and sends no gradient, whatever is in its row."""
    hidden, ids = call.arguments["hidden"].clone(), call.arguments["ids"].clone()
    ids[::2] = IGNORED
    hidden[::2] = math.nan
    masked = call.again(hidden=hidden, ids=ids)[::2]
    spoiled = call.gradients(hidden=hidden, ids=ids)
    hidden[::2] = 0.0
    rows, plain = spoiled["hidden"][::2], call.gradients(hidden=hidden, ids=ids)["weight"]
    return (
        difference(masked, torch.zeros_like(masked), tolerance, words="masked rows")
        or difference(rows, torch.zeros_like(rows), tolerance, words="gradient of masked rows")
        or difference(spoiled["weight"], plain, tolerance, words="gradient of weight beside masked rows of NaN")
    )


def refuses_bad_input(call: Call, tolerance: Tolerance) -> str:
    """Tokens outside the vocabulary, wrong dtypes and shapes that do not agree: one line each."""
    hidden, weight, ids = call.arguments.values()
    bad: dict[str, dict[str, Any]] = {
        "token -1": {"ids": torch.full_like(ids, -1)},
        "token V": {"ids": torch.full_like(ids, weight.shape[0])},
        "ids of int16": {"ids": ids.to(torch.int16)},
        "one id too many": {"ids": torch.cat([ids, ids[:1]])},
        "hidden of float64": {"hidden": hidden.double()},
        "a deeper weight": {"weight": torch.cat([weight, weight], 1)},
    }
    for words, changed in bad.items():
        said = call.refusal(None, **changed)
        if not said or "\n" in said:
            return f"{words} is accepted" if not said else f"{words}: refused in more than one line"
    return ""
