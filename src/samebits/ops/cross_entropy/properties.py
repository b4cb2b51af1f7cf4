"""What a cross-entropy must be, whatever it is built of: predicates that its contract names and the checker executes.

Where the logits themselves must be known, hidden stands for them: its product with the identity is exact."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference
from samebits.ops.lm_head import lm_head
from samebits.ops.logprob import check as logprob
from samebits.ops.logprob.check import IGNORED
from samebits.ops.logprob.reference import BLOCK
from samebits.ops.softmax import log_softmax

BITWISE = Tolerance(kind="bitwise")
# Beyond this gap the other tokens together weigh less than half an ulp of 1: exp(-17) < 2^-24.
CERTAIN = 17.0
# Whole numbers up to this and what is added to them are exact in every format.
WHOLE = 32.0


def is_not_negative(call: Call, tolerance: Tolerance) -> str:
    """No loss below 0 and no -0, without slack: the sum contains exp(0). What is not a number is another's business."""
    below = call.output.signbit() & ~call.output.isnan()
    return f"{int(below.sum())} of {below.numel()} below 0; first {_first(call.output, below)}" if below.any() else ""


def no_token_above_one(call: Call, tolerance: Tolerance) -> str:
    """log softmax <= 0 at every token of the vocabulary, without slack, and its exponentials sum to 1."""
    hidden, vocabulary = call.arguments["hidden"], call.arguments["weight"].shape[0]
    tokens = torch.arange(vocabulary, device=hidden.device).repeat(hidden.shape[0])
    losses = call.again(hidden=hidden.repeat_interleave(vocabulary, 0), targets=tokens)
    below = losses.signbit() & ~losses.isnan()
    if below.any():
        return f"{int(below.sum())} of {below.numel()} log-probabilities above 0; first {-_first(losses, below)}"
    logits = _logits(call)
    total = losses.double().neg().exp().reshape(hidden.shape[0], vocabulary).sum(-1)
    # Each probability carries the error of its loss, the whole no more than the largest; beyond 104 none is left.
    allowed, known = torch.expm1(_loss_error(logits)), logits.isfinite().all(-1)
    return difference(
        total[known], torch.ones_like(total[known]), tolerance, allowed=allowed[known], words="sum of probabilities"
    )


def finite_or_infinite(call: Call, tolerance: Tolerance) -> str:
    """Finite wherever the largest logit less the target's is a float32, else +inf; never NaN for finite logits."""
    logits, targets, loss = _logits(call), call.arguments["targets"], call.output
    own = logits.gather(1, targets.clamp(min=0)[:, None])[:, 0]
    beyond = (logits.amax(-1) - own).isinf() & (targets != IGNORED)
    wrong = logits.isfinite().all(-1) & ((loss == math.inf) != beyond) | (logits.isfinite().all(-1) & loss.isnan())
    return (
        f"{int(wrong.sum())} of {wrong.numel()} rows of finite logits; first {_first(loss, wrong)}"
        if wrong.any()
        else ""
    )


def nan_shows(call: Call, tolerance: Tolerance) -> str:
    """A NaN among the logits makes the loss NaN; an ignored row stays 0."""
    poisoned, ignored = call.arguments["hidden"].clone(), call.arguments["targets"] == IGNORED
    poisoned[:, call.inputs.seed % poisoned.shape[1]] = math.nan
    found = call.again(hidden=poisoned)
    hidden_nan = ~found.isnan() & ~ignored
    if hidden_nan.any():
        return (
            f"{int(hidden_nan.sum())} of {found.numel()} rows with NaN give a number; first {_first(found, hidden_nan)}"
        )
    return difference(found[ignored], torch.zeros_like(found[ignored]), BITWISE, words="ignored rows of NaN")


def same_in_every_form(call: Call, tolerance: Tolerance) -> str:
    """Fused or apart: the loss of rows, its sum in one pass with gradients, and gather of log_softmax of lm_head."""
    targets, rows, vocabulary = call.arguments["targets"], call.output, call.arguments["weight"].shape[0]
    logits = _logits(call)
    apart = 0.0 - log_softmax(logits).gather(1, targets.clamp(min=0)[:, None])[:, 0]
    apart, finite = torch.where(targets == IGNORED, 0.0, apart), logits.isfinite().all(-1)
    # One block is one fold of 256 lanes, which is log_softmax's own tree; more blocks are another tree.
    judged_as = BITWISE if vocabulary <= BLOCK else tolerance
    bound = 2 * _loss_error(logits) + 2.0**-22 * apart.double().abs()
    found = difference(rows[finite], apart[finite], judged_as, allowed=bound[finite], words="apart from the logits")
    fused = call.gradients(options={"reduction": "sum"})
    return found or next(
        filter(
            None,
            (
                difference(fused[name], each, BITWISE, words=f"gradient of {name} in one pass")
                for name, each in call.gradients().items()
            ),
        ),
        "",
    )


def certain_token_costs_nothing(call: Call, tolerance: Tolerance) -> str:
    """A target that leads by 17 + ln V or more costs exactly 0."""
    whole, targets = _whole(call), _own_targets(call)
    lead = whole.amax(-1, keepdim=True) + math.ceil(CERTAIN + math.log(whole.shape[1]))
    led = whole.scatter(1, targets.clamp(min=0)[:, None], lead)
    found = call.again(None, **_as_logits(led), targets=targets)
    return difference(found, torch.zeros_like(found), tolerance, words="certain targets")


def equal_logits_cost_log_of_vocabulary(call: Call, tolerance: Tolerance) -> str:
    """V equal logits give ln V: what an untrained model loses."""
    weight, targets = call.arguments["weight"], call.arguments["targets"]
    hidden = call.arguments["hidden"].nan_to_num().clamp(-WHOLE, WHOLE)
    found = call.again(hidden=hidden, weight=weight[:1].expand(weight.shape).contiguous())
    expected = torch.full_like(found, math.log(weight.shape[0]), dtype=torch.float64)
    return difference(found, torch.where(targets == IGNORED, 0.0, expected), tolerance, words="equal logits")


def gradient_is_softmax_less_target(call: Call, tolerance: Tolerance) -> str:
    """Of the mean: (softmax - onehot) / count; a row sums to 0, an ignored one is 0 bit for bit."""
    given = {**_as_logits(call.arguments["hidden"].nan_to_num().clamp(-WHOLE, WHOLE)), "targets": _own_targets(call)}
    ignored = given["targets"] == IGNORED
    if ignored.all():
        return ""
    found = call.gradients(wanted=["hidden"], options={"reduction": "mean"}, **given)["hidden"].cpu()
    count = int((~ignored).sum())
    share = torch.full((len(found),), -1.0) / count
    cpu = {"hidden": given["hidden"].cpu(), "weight": given["weight"].cpu(), "ids": given["targets"].cpu()}
    wanted = logprob.exact(cpu, share, lambda terms: call.sum_error(terms))["hidden"]
    wrong = difference(found, wanted.exact, tolerance, allowed=wanted.allowed, words="gradient of the mean")
    sums = difference(
        found.double().sum(-1),
        torch.zeros(len(found)).double(),
        tolerance,
        allowed=wanted.allowed.sum(-1),
        words="sum of a row's gradient",
    )
    zero = found[ignored.cpu()]
    return wrong or sums or difference(zero, torch.zeros_like(zero), BITWISE, words="gradient of ignored rows")


def refuses_bad_input(call: Call, tolerance: Tolerance) -> str:
    """Tokens outside the vocabulary, wrong dtypes and shapes that do not agree: one line each."""
    hidden, weight, targets = call.arguments.values()
    bad: dict[str, dict[str, Any]] = {
        "target -1": {"targets": torch.full_like(targets, -1)},
        "target V": {"targets": torch.full_like(targets, weight.shape[0])},
        "targets of int16": {"targets": targets.to(torch.int16)},
        "one target too many": {"targets": torch.cat([targets, targets[:1]])},
        "hidden of float64": {"hidden": hidden.double()},
        "a deeper weight": {"weight": torch.cat([weight, weight], 1)},
    }
    for words, changed in bad.items():
        said = call.refusal(**changed)
        if not said or "\n" in said:
            return f"{words} is accepted" if not said else f"{words}: refused in more than one line"
    return "" if call.refusal({"reduction": "average"}) else "reduction 'average' is accepted"


def ignored_rows_weigh_nothing(call: Call, tolerance: Tolerance) -> str:
    """A mean is that of the rows left; where none is, rows and sums are 0 without gradient, and a mean is NaN."""
    hidden, targets = call.arguments["hidden"], call.arguments["targets"]
    kept, mean = targets != IGNORED, {"reduction": "mean"}
    if kept.any():
        left = call.again(mean, hidden=hidden[kept], targets=targets[kept])
        found = difference(call.again(mean), left, tolerance, words="mean without the ignored rows")
        if found:
            return found
    none = torch.full_like(targets, IGNORED)
    if not call.again(mean, targets=none).isnan():
        return "the mean of no rows is a number"
    for options in ({"reduction": "none"}, {"reduction": "sum"}, {"reduction": "mean", "denominator": 3.0}):
        values = {"loss": call.again(options, targets=none), **call.gradients(options=options, targets=none)}
        for name, value in values.items():
            if difference(value, torch.zeros_like(value), tolerance):
                return f"{name} of ignored rows with {options} is not 0"
    return ""


def _first(values: Tensor, where: Tensor) -> float:
    return float(values[where][0])


def _logits(call: Call) -> Tensor:
    return lm_head(call.arguments["hidden"], call.arguments["weight"])


def _gap(logits: Tensor) -> Tensor:
    return logits.double().amax(-1) - logits.double().amin(-1)


def _loss_error(logits: Tensor) -> Tensor:
    """u (3 R + 4 ln n) + gamma(d) of the log-sum-exp, and 2 u R of the target's own logit; d is the tree's height.

    R is the largest gap whose exponential is not 0."""
    vocabulary, unit = logits.shape[1], 2.0**-24
    height = BLOCK.bit_length() + -(-vocabulary // BLOCK)
    gap = _gap(logits).clamp(max=104.0)
    return unit * (5 * gap + 4 * math.log(vocabulary) + 4) + height * unit / (1 - height * unit)


def _as_logits(logits: Tensor) -> dict[str, Tensor]:
    """Arguments whose logits are the given ones, exactly."""
    identity = torch.eye(logits.shape[1], dtype=logits.dtype, device=logits.device)
    return {"hidden": logits, "weight": identity}


def _own_targets(call: Call) -> Tensor:
    """The call's targets for a vocabulary as wide as hidden is deep."""
    targets = call.arguments["targets"]
    return torch.where(targets == IGNORED, targets, targets % call.arguments["hidden"].shape[1])


def _whole(call: Call) -> Tensor:
    return call.arguments["hidden"].nan_to_num().clamp(-WHOLE, WHOLE).round()
