"""What a backward pass must do: reach every weight tensor, with the gradient that float64 computes, and keep skips."""

from __future__ import annotations

import torch

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference
from samebits.model.contracts.small_model import cut


def reaches_every_tensor(call: Call, tolerance: Tolerance) -> str:
    """Every weight tensor of every layer has a finite gradient with an element that is not 0."""
    for name, gradient in cut(call.output).items():
        if not bool(gradient.isfinite().all()):
            return f"the gradient of {name} is not finite"
        if not bool((gradient != 0).any()):
            return f"the gradient of {name} is 0 everywhere; allowed: an element that is not"
    return ""


def matches_float64(call: Call, tolerance: Tolerance) -> str:
    """Each tensor's gradient against float64, relative to the tensor's largest."""
    expected = cut(call.reference(*call.arguments.values()))
    for name, gradient in cut(call.output).items():
        exact = expected[name]
        wrong = difference(gradient, exact, tolerance, allowed=exact.abs().amax(), words=f"gradient of {name}")
        if wrong:
            return wrong
    return ""


def residual_matches(call: Call, tolerance: Tolerance) -> str:
    """Both gradients of a residual against float64 autograd, relative to the row's largest."""
    given = {name: value.double().requires_grad_() for name, value in call.arguments.items()}
    dy = torch.cat([call.arguments["x"].roll(1, 0), call.arguments["residual"].roll(1, -1)], -1)
    names = ["x", "residual"]
    with torch.enable_grad():
        exact = torch.autograd.grad(call.reference(*given.values()), [given[name] for name in names], dy.double())
    found = call.gradients(dy, names)
    for name, value in zip(names, exact, strict=True):
        scale = value.abs().amax(-1, keepdim=True)
        wrong = difference(found[name], value, tolerance, allowed=scale, words=f"gradient of {name}")
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
