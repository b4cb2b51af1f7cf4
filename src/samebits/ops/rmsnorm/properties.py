"""What an RMSNorm must be, whatever it is built of: predicates that its contract names and the checker executes.

Each takes a call that happened and says in one line what is wrong, or nothing."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference, not_refused
from samebits.ops.rmsnorm.check import statistic_error
from samebits.ops.rounding import allowed_error


def _summable(call: Call) -> Tensor:
    """x with every element small enough for the sum of all squares to stay finite in float32."""
    x = call.arguments["x"].float().nan_to_num()
    largest = math.sqrt(torch.finfo(torch.float32).max / x.shape[-1]) * (1 - call.sum_error(x.shape[-1]))
    # Rounding to the format may round up.
    largest *= 1 - torch.finfo(call.output.dtype).eps
    return x.clamp(-largest, largest).to(call.output.dtype)


def _few_bits(call: Call) -> Tensor:
    """x in quarters up to 16: three times as much, or eight times, is exact in every format."""
    return (call.arguments["x"].float().nan_to_num().clamp(-16, 16) * 4).round().div(4).to(call.output.dtype)


def _allowed(call: Call, exact: Tensor) -> Tensor:
    """How far a norm may be from `exact`: the statistic's error and two products, then the rounding to the format."""
    of_statistic = statistic_error(exact.shape[-1], call.sum_error)
    return allowed_error(exact, exact.abs(), of_statistic, 1, 2, call.output.dtype)


def bounded_by_root_n(call: Call, tolerance: Tolerance) -> str:
    """Finite, and |y_i| <= |weight_i| sqrt(n), while the sum of squares is finite. Beyond that a row becomes zeros."""
    y = call.again(x=_summable(call)).double()
    if not bool(y.isfinite().all()):
        return f"{int((~y.isfinite()).sum())} of {y.numel()} are not finite though the sum of squares is"
    limit = (call.arguments["weight"].double().abs() * math.sqrt(y.shape[-1])).expand(y.shape)
    over = y.abs() > limit + _allowed(call, limit)
    return f"{int(over.sum())} of {y.numel()} exceed weight times sqrt(n)" if bool(over.any()) else ""


def scales(call: Call, tolerance: Tolerance, *, factor: float, eps: float) -> str:
    """The norm of a x with a^2 eps is that of x with eps, with a's sign. With eps kept it would not be."""
    x = _few_bits(call)
    moved = (x.float() * factor).to(x.dtype)
    assert bool((moved.float() == x.float() * factor).all())  # the factor is exact by construction
    expected = call.again({"eps": eps}, x=x) * math.copysign(1.0, factor)
    found = call.again({"eps": eps * factor * factor}, x=moved)
    # Both sides may be off.
    return difference(found, expected, tolerance, allowed=2 * _allowed(call, expected.double()), words=f"{factor} x")


def zeros_stay_zeros(call: Call, tolerance: Tolerance) -> str:
    """A row of zeros gives zeros, each with the sign of its product."""
    zeros = call.arguments["x"].nan_to_num() * 0.0
    return difference(call.again(x=zeros), zeros * call.arguments["weight"], tolerance, words="zeros")


def mean_square_is_known(call: Call, tolerance: Tolerance, *, eps: float) -> str:
    """With a weight of ones the mean of y^2 is s / (s + eps), s the mean of x^2: 1 only where eps does not count."""
    x, ones = _summable(call), torch.ones_like(call.arguments["weight"])
    y, s = call.again({"eps": eps}, x=x, weight=ones).double(), x.double().square().mean(-1, keepdim=True)
    each = x.double() * (s + eps).rsqrt()
    off = _allowed(call, each)
    allowed = (off * (2 * each.abs() + off)).mean(-1)
    return difference(y.square().mean(-1), (s / (s + eps))[:, 0], tolerance, allowed=allowed, words="mean of y^2")


def backward_has_the_forwards_rows(call: Call, tolerance: Tolerance) -> str:
    """What backward multiplies dy with is what forward multiplied the weight with: each column shows one row's."""
    x = _summable(call)
    rows, width = x.shape
    shown, columns = torch.arange(width, device=x.device) % rows, torch.arange(width, device=x.device)
    dy = torch.zeros_like(x)
    dy[shown, columns] = 1.0
    forward = call.again(x=x, weight=torch.ones_like(call.arguments["weight"]))[shown, columns]
    backward = call.gradients(dy, ["weight"], x=x)["weight"]
    # The sign of a zero is left out: a chain that starts at +0 has lost it.
    return difference(backward + 0.0, forward + 0.0, tolerance, words="gradient of weight under ones")


def refuses_bad_input(call: Call, tolerance: Tolerance) -> str:
    """A wrong dtype, a weight of another length, an eps below 0 or not a number: one line each, and no output."""
    x, weight = call.arguments["x"], call.arguments["weight"]
    answers = {
        "x in float64": call.refusal(x=x.double(), weight=weight.double()),
        "a weight of another dtype": call.refusal(weight=weight.double()),
        "a weight one too long": call.refusal(weight=torch.cat([weight, weight[:1]])),
        "a weight of two axes": call.refusal(weight=weight[None]),
        "eps below 0": call.refusal({"eps": -1e-6}),
        "eps that is not a number": call.refusal({"eps": math.nan}),
    }
    return not_refused(answers)
