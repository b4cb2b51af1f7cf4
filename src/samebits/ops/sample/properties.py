"""What sampling must be, whatever it is built of: predicates that its contract names and the checker executes.

A request's number decides how it draws (check.WAYS), so a predicate asks for a way by renumbering the requests."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference
from samebits.ops.sample.check import WAYS
from samebits.ops.sample.reference import NO_TOKEN

GREEDY, PLAIN = 0, 1
# Draws that an empirical frequency is made of, and the tokens they are drawn from.
DRAWS, TOKENS = 2048, 8
# What a standard deviation of frequencies may be exceeded by: one draw in 500 million goes beyond.
DEVIATIONS = 6.0


def greedy_takes_the_first_largest(call: Call, tolerance: Tolerance) -> str:
    """Temperature 0 is the largest logit, the first of equals."""
    logits = _ordinary(call)
    first = torch.argmax((logits == logits.amax(-1, keepdim=True)).int(), -1)
    return difference(call.again(logits=logits, requests=_of_way(call, GREEDY)), first, tolerance, words="tokens at 0")


def stays_within_top_k(call: Call, tolerance: Tolerance) -> str:
    """No token below the k-th largest logit is drawn."""
    logits = _ordinary(call)
    for way, (_, k, _) in enumerate(WAYS):
        if k == 0:
            continue
        tokens = call.again(logits=logits, requests=_of_way(call, way))
        least = logits.float().topk(min(k, logits.shape[1])).values[:, -1]
        outside = _score(logits, tokens) < least
        if outside.any():
            row = int(outside.nonzero()[0])
            return f"top_k = {k}: row {row} draws token {int(tokens[row])}, which is not among them"
    return ""


def stays_within_top_p(call: Call, tolerance: Tolerance) -> str:
    """The tokens more likely than the one drawn have together less than top_p, but for the rounding of sums."""
    logits = _ordinary(call)
    for way, (heat, k, top_p) in enumerate(WAYS):
        if top_p == 1.0:
            continue
        tokens = call.again(logits=logits, requests=_of_way(call, way))
        scores = logits.double() / heat
        kept = scores >= scores.topk(min(k, scores.shape[1]) if k else scores.shape[1]).values[:, -1:]
        share = scores.masked_fill(~kept, -math.inf).softmax(-1)
        # Two scores may have one exponential in float32, and ties are kept: what is hardly more likely is no evidence.
        above = scores > _score(scores, tokens)[:, None] + 2.0**-20 * (1 + scores.abs().amax(-1, keepdim=True))
        before = (share * above).sum(-1)
        slack = 2 * call.sum_error(scores.shape[1]) + 2.0**-20 * (1 + scores.abs().amax(-1))
        beyond = before > top_p + slack
        if beyond.any():
            row = int(beyond.nonzero()[0])
            return f"top_p = {top_p}: row {row} draws a token after {float(before[row]):.6f} of the weight"
    return ""


def never_draws_the_impossible(call: Call, tolerance: Tolerance) -> str:
    """A logit of -inf is never drawn, and a row with nothing but these, with +inf or with NaN, gives no token."""
    logits = _ordinary(call)
    odd = torch.arange(logits.shape[1], device=logits.device) % 2 == 1
    for way in call.some_of(range(len(WAYS))):
        requests = _of_way(call, way)
        tokens = call.again(logits=logits.masked_fill(odd, -math.inf), requests=requests)
        if bool((tokens % 2 == 1).any()) or bool((tokens < 0).any()):
            return f"way {way}: a token of probability 0 is drawn"
        for value in (math.nan, math.inf):
            spoiled = logits.clone()
            spoiled[:, logits.shape[1] // 2] = value
            tokens = call.again(logits=spoiled, requests=requests)
            if bool((tokens != NO_TOKEN).any()):
                return f"way {way}: a row with {value} gives a token"
        empty = call.again(logits=torch.full_like(logits, -math.inf), requests=requests)
        if bool((empty != NO_TOKEN).any()):
            return f"way {way}: a row of -inf gives a token"
    return ""


def frequencies_are_probabilities(call: Call, tolerance: Tolerance) -> str:
    """Over many positions each token is drawn as often as it is likely: 6 sigma / sqrt(N) and one draw."""
    row = _ordinary(call)[:1, :TOKENS].clamp(-4, 4)
    requests = (call.arguments["requests"][:1] // len(WAYS) * len(WAYS) + PLAIN).repeat(DRAWS)
    positions = torch.arange(DRAWS, device=row.device)
    tokens = call.again(logits=row.repeat(DRAWS, 1), requests=requests, positions=positions)
    found = torch.bincount(tokens, minlength=row.shape[1]).double() / DRAWS
    likely = row[0].double().softmax(-1)
    allowed = DEVIATIONS * (likely * (1 - likely) / DRAWS).sqrt() + 1 / DRAWS
    return difference(found, likely, tolerance, allowed=allowed, words="frequencies")


def request_and_position_decide(call: Call, tolerance: Tolerance) -> str:
    """The same logits, request and position draw the same token in any row, beside any others."""
    logits, requests, positions = call.arguments.values()
    doubled = call.again(
        logits=logits.repeat_interleave(2, 0).flip(0),
        requests=requests.repeat_interleave(2).flip(0),
        positions=positions.repeat_interleave(2).flip(0),
    )
    return difference(doubled.flip(0)[::2], call.output, tolerance, words="in other rows") or difference(
        doubled.flip(0)[1::2], call.output, tolerance, words="asked twice"
    )


def refuses_bad_input(call: Call, tolerance: Tolerance) -> str:
    """Wrong dtypes, shapes that do not agree, negative positions, a seed beyond 64 bits: one line each."""
    logits, positions = call.arguments["logits"], call.arguments["positions"]
    bad: dict[str, dict[str, Any]] = {
        "logits of float64": {"logits": logits.double()},
        "logits without tokens": {"logits": logits[:, :0]},
        "a vector of logits": {"logits": logits[0]},
        "a position below 0": {"positions": torch.full_like(positions, -1)},
        "a position of 2^32": {"positions": torch.full_like(positions, 2**32)},
        "positions of float32": {"positions": positions.float()},
        "one position too many": {"positions": torch.cat([positions, positions[:1]])},
    }
    for words, changed in bad.items():
        said = call.refusal(None, **changed)
        if not said or "\n" in said:
            return f"{words} is accepted" if not said else f"{words}: refused in more than one line"
    return "" if call.refusal({"seed": 2**64}) else "a seed of 2^64 is accepted"


def _ordinary(call: Call) -> Tensor:
    """Logits that leave probabilities to speak of."""
    return call.arguments["logits"].nan_to_num().clamp(-64, 64)


def _of_way(call: Call, way: int) -> Tensor:
    """The requests, renumbered so that all draw in one way."""
    return call.arguments["requests"] // len(WAYS) * len(WAYS) + way


def _score(scores: Tensor, tokens: Tensor) -> Tensor:
    return scores.gather(1, tokens.clamp(min=0)[:, None])[:, 0]
