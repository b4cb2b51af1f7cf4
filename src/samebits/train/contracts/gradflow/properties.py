"""What a backward pass must do: reach every weight tensor, with the gradient that float64 computes, and keep skips."""

from __future__ import annotations

import torch

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference
from samebits.model.contracts.small_model import cut
from samebits.ops.rmsnorm.check import SPECS
from samebits.ops.rounding import FLOAT32_ROUNDOFF
from samebits.train.contracts.gradflow.reference import effect64


def reaches_every_tensor(call: Call, tolerance: Tolerance) -> str:
    """Every weight tensor of every layer has a finite gradient with an element that is not 0.

    Where a softmax is decided wholly, what reaches queries and keys may be smaller than its own rounding, and 0."""
    empty = []
    for name, gradient in cut(call.output).items():
        if not bool(gradient.isfinite().all()):
            return f"the gradient of {name} is not finite"
        if not bool((gradient != 0).any()):
            empty.append(name)
    if not empty:
        return ""
    exact = call.reference(*call.arguments.values())
    effects, expected = cut(effect64(call.arguments, exact)), cut(exact)
    for name in empty:
        largest, lost = float(expected[name].abs().amax()), float(effects[name].amax())
        if largest > lost:
            return f"the gradient of {name} is 0 everywhere; in float64 {largest:.2e}, off by {lost:.2e} from rounding"
    return ""


def matches_float64(call: Call, tolerance: Tolerance) -> str:
    """Each tensor's gradient against float64, within what rounding does to the tensor on the way there and back."""
    exact = call.reference(*call.arguments.values())
    effects, expected = cut(effect64(call.arguments, exact)), cut(exact)
    for name, gradient in cut(call.output).items():
        allowed = effects[name].amax()
        wrong = difference(gradient, expected[name], tolerance, allowed=allowed, words=f"gradient of {name}")
        if wrong:
            return wrong
    return ""


def residual_matches(call: Call, tolerance: Tolerance) -> str:
    """Both gradients of a residual against float64, within the norm's own bound and the rounding of their sum.

    Both are asked at the rounded sum of x and residual, which is where the norm is taken."""
    x, residual, weight = (call.arguments[name] for name in ("x", "residual", "weight"))
    dy = torch.cat([x.roll(1, 0), residual.roll(1, -1)], -1)
    hidden = x + residual
    bound = SPECS["rmsnorm"].exact({"x": hidden, "weight": weight}, x.roll(1, 0), call.sum_error)["x"]
    with torch.enable_grad():
        at = hidden.double().requires_grad_()
        (exact,) = torch.autograd.grad(call.reference(at, torch.zeros_like(at), weight.double()), at, dy.double())
    # The sum rounds once, of numbers that may cancel.
    allowed = bound.allowed + FLOAT32_ROUNDOFF * (exact.abs() + bound.allowed)
    for name, value in call.gradients(dy, ["x", "residual"]).items():
        wrong = difference(value, exact, tolerance, allowed=allowed, words=f"gradient of {name}")
        if wrong:
            return wrong
    return ""


def silent_branch_passes_on(call: Call, tolerance: Tolerance) -> str:
    """Where nothing flows into the norm, what flows into h reaches x and the residual bit for bit."""
    flowing = call.arguments["x"].roll(1, 0)
    dy = torch.cat([torch.zeros_like(flowing), flowing], -1)
    for name, gradient in call.gradients(dy, ["x", "residual"]).items():
        # A zero of either sign is nothing that flows.
        wrong = difference(gradient + 0.0, flowing + 0.0, tolerance, words=f"gradient of {name}")
        if wrong:
            return wrong
    return ""
