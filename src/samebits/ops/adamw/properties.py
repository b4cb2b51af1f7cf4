"""What a step of AdamW must be, whatever it is built of: predicates that its contract names and the checker executes.

Each takes a call that happened and says in one line what is wrong, or nothing. A call's output holds the parameter and
both moments side by side."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference, not_refused
from samebits.ops.adamw.reference import SUBJECT
from samebits.ops.rounding import FLOAT32_ROUNDOFF, FLOAT32_TINY

# The largest gradient whose square, and any mean of such squares, stays finite in float32.
LARGEST = 1.8e19
STEPS = 100
RATE, BETA1, BETA2, EPSILON, DECAY = 1e-2, 0.9, 0.95, 1e-8, 0.1


def _parts(output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Parameter, first moment, second moment."""
    width = output.shape[-1] // 3
    return output[..., :width], output[..., width : 2 * width], output[..., 2 * width :]


def _clamped(values: Tensor, largest: float) -> Tensor:
    return values.float().nan_to_num().clamp(-largest, largest)


def moments_ignore_the_weight(call: Call, tolerance: Tolerance) -> str:
    """Neither the parameter nor its decay touches a moment."""
    other = call.again({"weight_decay": 0.5}, param=call.arguments["param"] * 2 + 1)
    width = call.arguments["param"].shape[-1]
    return difference(other[..., width:], call.output[..., width:], tolerance, words="moments beside another weight")


def second_moment_is_not_negative(call: Call, tolerance: Tolerance) -> str:
    """v >= 0 without slack: a mean of squares."""
    below = ~(_parts(call.output)[2] >= 0)
    return f"{int(below.sum())} of {below.numel()} second moments are below 0" if bool(below.any()) else ""


def bias_correction(call: Call, tolerance: Tolerance) -> str:
    """From moments of zero, gradient 1 and lr 1 the parameter shows 1 / (1 - beta^t), which is never below 1."""
    step, like = 1 + call.inputs.seed % 400, torch.zeros_like(call.arguments["param"], dtype=torch.float32)
    given: dict[str, Tensor] = {"param": like, "grad": like + 1, "exp_avg": like, "exp_avg_sq": like}
    plain: dict[str, Any] = {"step": step, "lr": 1.0, "eps": 2.0**-126, "weight_decay": 0.0}
    first = -_parts(call.again({**plain, "beta1": BETA1, "beta2": 0.0}, **given))[0]
    second = -_parts(call.again({**plain, "beta1": 0.0, "beta2": BETA2}, **given))[0]
    of_first, of_second = 1 / (1 - BETA1**step), 1 / (1 - BETA2**step)
    expected = torch.full_like(first, (1 - BETA1) * of_first, dtype=torch.float64)
    differs = difference(first, expected, tolerance, words=f"m corrected at step {step}")
    expected = torch.full_like(second, 1 / math.sqrt((1 - BETA2) * of_second), dtype=torch.float64)
    differs = differs or difference(second, expected, tolerance, words=f"v corrected at step {step}")
    return differs or ("" if of_first >= 1 <= of_second else f"a correction is below 1 at step {step}")


def finite_while_squares_are(call: Call, tolerance: Tolerance) -> str:
    """Finite for gradients up to 1.8e19; beyond, the second moment is infinite for all to see, and the weight rests."""
    grad = _clamped(call.arguments["grad"], LARGEST)
    param = _clamped(call.arguments["param"], 1e4).to(call.arguments["param"].dtype)
    y = call.again(param=param, grad=grad, exp_avg=grad / 2, exp_avg_sq=grad.square())
    if not bool(y.isfinite().all()):
        return f"{int((~y.isfinite()).sum())} of {y.numel()} are not finite for gradients up to {LARGEST}"
    large = torch.where(grad < 0, -1.0, 1.0) * 2 * LARGEST / math.sqrt(1 - BETA2)
    resting, _, second = _parts(call.again(param=param, grad=large, exp_avg=grad / 2, exp_avg_sq=grad.square()))
    if not bool(second.isposinf().all()):
        return f"{int((~second.isposinf()).sum())} second moments hide that a square left float32"
    # A zero may lose its sign: what is added to it is a zero too.
    words = "a weight under an infinite second moment"
    return difference(resting + 0.0, _decayed(param) + 0.0, tolerance, words=words)


def _decayed(param: Tensor) -> Tensor:
    """param (1 - lr decay), rounded to float32 and to the parameter's format."""
    decay = torch.tensor(SUBJECT.decay, dtype=torch.float32, device=param.device)
    return (param.float() * decay).to(param.dtype).float()


def nothing_but_decay(call: Call, tolerance: Tolerance) -> str:
    """No gradient and moments of zero leave the parameter times 1 - lr decay."""
    param = call.arguments["param"]
    zero = torch.zeros_like(param, dtype=torch.float32)
    found = _parts(call.again(grad=zero.to(param.dtype), exp_avg=zero, exp_avg_sq=zero))[0]
    return difference(found, _decayed(param), tolerance, words="without a gradient")


def hundred_steps(call: Call, tolerance: Tolerance) -> str:
    """A hundred steps from zero moments, each with the rows of gradients moved on by one, beside float64.

    Bound: each step rounds the weight twice and the quotient's parts once for every step they remember."""
    weight, rows = _clamped(call.arguments["param"], 1e9), _clamped(call.arguments["grad"], 1e9)
    zero = torch.zeros_like(weight)
    found = {"param": weight, "exp_avg": zero, "exp_avg_sq": zero}
    grads = [rows.roll(step, 0) for step in range(1, STEPS + 1)]
    for step, grad in enumerate(grads, 1):
        updated = _parts(call.again({"step": step}, grad=grad, **found))
        found = {"param": updated[0], "exp_avg": updated[1], "exp_avg_sq": updated[2]}
    p, allowed = _hundred_steps64(weight.double(), torch.stack(grads).double())
    return difference(found["param"], p, tolerance, allowed=1.01 * allowed, words=f"after {STEPS} steps")


def _hundred_steps64(p: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    """The weight after all steps, and how far from it it may be; the steps before the last axes."""
    steps = torch.arange(1, STEPS + 1, dtype=torch.float64, device=p.device).reshape(-1, *[1] * p.dim())
    m, v, size = _decaying(grads, BETA1), _decaying(grads * grads, BETA2), _decaying(grads.abs(), BETA1)
    d = (v / (1 - BETA2**steps)).sqrt() + EPSILON
    correction = 1 - BETA1**steps
    # The share of the quotient that may be wrong: roundings, and squares and moments that underflow.
    lost = 8 * (steps + 1) * FLOAT32_ROUNDOFF + (4 * steps * FLOAT32_TINY).sqrt() / d
    each = RATE * (size / correction * lost + 4 * steps * FLOAT32_TINY / correction) / d
    weights = list[Tensor]()
    for quotient in RATE * m / correction / d:
        p = p * (1 - RATE * DECAY) - quotient
        weights.append(p)
    return p, (2 * FLOAT32_ROUNDOFF * torch.stack(weights).abs() + each + 2 * FLOAT32_TINY).sum(0)


def _decaying(terms: Tensor, beta: float) -> Tensor:
    """The moving average after each step."""
    average, found = torch.zeros_like(terms[0]), list[Tensor]()
    for term in (1 - beta) * terms:
        average = beta * average + term
        found.append(average)
    return torch.stack(found)


def refuses_bad_input(call: Call, tolerance: Tolerance) -> str:
    """Dtypes, shapes and numbers that make no sense: one line each, and no step."""
    param, moment = call.arguments["param"], call.arguments["exp_avg"]
    answers = {
        "param in float64": call.refusal(param=param.double(), grad=param.double()),
        "a moment in bfloat16": call.refusal(exp_avg=moment.bfloat16()),
        "a gradient with one row more": call.refusal(grad=torch.cat([call.arguments["grad"], param[:1]])),
        "step 0": call.refusal({"step": 0}),
        "beta1 of 1": call.refusal({"beta1": 1.0}),
        "eps of 0": call.refusal({"eps": 0.0}),
        "lr below 0": call.refusal({"lr": -1.0}),
    }
    return not_refused(answers)
