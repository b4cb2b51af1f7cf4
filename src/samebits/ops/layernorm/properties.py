"""What a LayerNorm must be, whatever it is built of: predicates that its contract names and the checker executes.

Each takes a call that happened and says in one line what is wrong, or nothing."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference, not_refused
from samebits.ops.layernorm.check import EPSILON, allowed_output, normalised
from samebits.ops.layernorm.reference import layernorm64
from samebits.ops.rounding import FLOAT32_ROUNDOFF, allowed_error

# Shifts that add no bits to quarters up to 16 in this format; in float32 far from 0, where a one-pass variance fails.
SHIFTS = {"float32": 4096.0, "bfloat16": 16.0, "float16": 16.0}


def _few_bits(call: Call) -> Tensor:
    """x in quarters up to 16: a shift, three times as much, or eight times, is exact, and so are sums of them."""
    return (call.arguments["x"].float().nan_to_num().clamp(-16, 16) * 4).round().div(4).to(call.output.dtype)


def _summable(call: Call) -> Tensor:
    """x with every element small enough for the sum of squared deviations to stay finite in float32."""
    x = call.arguments["x"].float().nan_to_num()
    largest = math.sqrt(torch.finfo(torch.float32).max / x.shape[-1]) / 4
    return x.clamp(-largest, largest).to(call.output.dtype)


def _plain(call: Call) -> tuple[Tensor, Tensor]:
    """A weight of ones and a bias of zeros: the normalised rows themselves."""
    weight = call.arguments["weight"]
    return torch.ones_like(weight), torch.zeros_like(weight)


def _allowed(call: Call, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """How far the norm of x may be from its exact value."""
    y = layernorm64(x, weight, bias, eps)
    return allowed_output(y, weight, normalised(x, eps, call.sum_error), call.output.dtype)


def constant_rows_give_the_bias(call: Call, tolerance: Tolerance) -> str:
    """Where all elements of a row are equal, nothing is left of it: zero times the weight, plus the bias."""
    weight, bias = call.arguments["weight"], call.arguments["bias"]
    x = _few_bits(call)[:, :1].expand_as(call.output).contiguous()
    expected = (torch.zeros_like(x) * weight) + bias
    return difference(call.again(x=x), expected, tolerance, words="norm of a constant row")


def shifts(call: Call, tolerance: Tolerance) -> str:
    """The norm of x + c is that of x."""
    weight, bias = call.arguments["weight"], call.arguments["bias"]
    x, shift = _few_bits(call), SHIFTS[call.format]
    moved = (x.float() + shift).to(x.dtype)
    assert bool((moved.double() == x.double() + shift).all())  # the shift is exact by construction
    # Both sides may be off.
    allowed = sum(_allowed(call, each, weight, bias, EPSILON) for each in (x, moved))
    return difference(call.again(x=moved), call.again(x=x), tolerance, allowed=allowed, words=f"x + {shift}")


def scales(call: Call, tolerance: Tolerance, *, factor: float, eps: float) -> str:
    """Without a bias, the norm of a x with a^2 eps is that of x with eps, with a's sign. With eps kept it is not."""
    x, weight = _few_bits(call), call.arguments["weight"]
    bias = torch.zeros_like(call.arguments["bias"])
    moved = (x.float() * factor).to(x.dtype)
    assert bool((moved.float() == x.float() * factor).all())  # the factor is exact by construction
    expected = call.again({"eps": eps}, x=x, bias=bias) * math.copysign(1.0, factor)
    found = call.again({"eps": eps * factor * factor}, x=moved, bias=bias)
    allowed = 2 * _allowed(call, x, weight, bias, eps)
    # The sign of a zero is left out: what is left of an element at the mean is +0, whatever the sign of a.
    return difference(found + 0.0, expected + 0.0, tolerance, allowed=allowed, words=f"{factor} x")


def moments_are_known(call: Call, tolerance: Tolerance, *, eps: float) -> str:
    """With a weight of ones and no bias the mean of y is 0 and that of y^2 is v / (v + eps), v the variance of x."""
    x, (weight, bias) = _few_bits(call), _plain(call)
    y = call.again({"eps": eps}, x=x, weight=weight, bias=bias).double()
    v = x.double().var(-1, correction=0)
    off = _allowed(call, x, weight, bias, eps)
    exact = layernorm64(x, eps=eps)
    wrong = difference(y.mean(-1), torch.zeros_like(v), tolerance, allowed=off.mean(-1) + 1e-15, words="mean of y")
    allowed = (off * (2 * exact.abs() + off)).mean(-1) + 1e-15
    return wrong or difference(y.square().mean(-1), v / (v + eps), tolerance, allowed=allowed, words="mean of y^2")


def bounded_by_root_n(call: Call, tolerance: Tolerance) -> str:
    """Finite, and |y - bias| <= |weight| sqrt(n), while the sum of squared deviations is finite."""
    y = call.again(x=_summable(call)).double()
    if not bool(y.isfinite().all()):
        return f"{int((~y.isfinite()).sum())} of {y.numel()} are not finite though the sum of squares is"
    width = y.shape[-1]
    weight, bias = call.arguments["weight"].double().abs(), call.arguments["bias"].double().abs()
    limit = (weight * math.sqrt(width) + bias).expand(y.shape)
    # The rounded deviations are those whose squares were added: a mean that is off does not matter here.
    of_limit = call.sum_error(width) + 16 * FLOAT32_ROUNDOFF
    over = y.abs() > limit + allowed_error(limit, limit, of_limit, 1, 3, call.output.dtype)
    return f"{int(over.sum())} of {y.numel()} exceed weight times sqrt(n) plus bias" if bool(over.any()) else ""


def backward_has_the_forwards_rows(call: Call, tolerance: Tolerance) -> str:
    """What backward multiplies dy with is what forward multiplied the weight with: each column shows one row's."""
    x = _summable(call)
    rows, width = x.shape
    shown, columns = torch.arange(width, device=x.device) % rows, torch.arange(width, device=x.device)
    dy = torch.zeros_like(x)
    dy[shown, columns] = 1.0
    weight, bias = _plain(call)
    forward = call.again(x=x, weight=weight, bias=bias)[shown, columns]
    backward = call.gradients(dy, ["weight"], x=x)["weight"]
    # The sign of a zero is left out: a chain that starts at +0 has lost it.
    return difference(backward + 0.0, forward + 0.0, tolerance, words="gradient of weight under ones")


def refuses_bad_input(call: Call, tolerance: Tolerance) -> str:
    """A wrong dtype, a weight or bias of another length, an eps below 0 or not a number: one line each, no output."""
    x, weight, bias = call.arguments["x"], call.arguments["weight"], call.arguments["bias"]
    answers = {
        "all in float64": call.refusal(x=x.double(), weight=weight.double(), bias=bias.double()),
        "a weight of another dtype": call.refusal(weight=weight.double()),
        "a bias of another dtype": call.refusal(bias=bias.double()),
        "a weight one too long": call.refusal(weight=torch.cat([weight, weight[:1]])),
        "a bias one too long": call.refusal(bias=torch.cat([bias, bias[:1]])),
        "a weight of two axes": call.refusal(weight=weight[None]),
        "eps below 0": call.refusal({"eps": -1e-6}),
        "eps that is no number": call.refusal({"eps": math.nan}),
    }
    return not_refused(answers)
