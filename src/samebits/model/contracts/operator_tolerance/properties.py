"""What the bounds of operators must do: hold every result, and let no error of a few bounds pass."""

from __future__ import annotations

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference
from samebits.model.contracts.operator_tolerance import BOUNDS, bounded
from samebits.model.contracts.operators import Asked, declared_operators


def within_their_bounds(call: Call, tolerance: Tolerance) -> str:
    """Every output and every gradient of every operator, element by element, against its own exact value."""
    output, start = call.output, 0
    for declared, _, bounds in bounded(Asked.of(*call.arguments.values())):
        for name, bound in bounds.items():
            stop = start + bound.exact.numel()
            words = f"{declared.name} in {call.format}, {_label(name)}"
            wanted, allowed = bound.exact.reshape(-1), bound.allowed.reshape(-1)
            wrong = difference(output[start:stop], wanted, tolerance, allowed=allowed, words=words)
            if wrong:
                return wrong
            start = stop
    return "" if start == len(output) else f"{len(output)} numbers; allowed: {start}, one for each exact value"


def errors_are_seen(call: Call, tolerance: Tolerance) -> str:
    """No place of any result takes an error of some bounds, and no result its own half."""
    names = [
        f"{each.name}, {_label(name)}" for each in declared_operators() for name in ("output", *each.differentiated)
    ]
    for name, (places, halved) in zip(names, call.output.tolist(), strict=True):
        if places or halved:
            half = ", and so is half of it" if halved else ""
            return f"{name} in {call.format}: off by {BOUNDS} bounds is within the bound at {places} places{half}"
    return ""


def _label(name: str) -> str:
    return name if name == "output" else f"gradient of {name}"
