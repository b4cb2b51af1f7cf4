"""Predicates that any component may name, and how far apart two results may be for each kind of tolerance.

A predicate takes a call that happened, a tolerance and its parameters, and says in one line what is wrong, or "".
A component's own predicates have the same shape and are named by module:function."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import torch
from torch import Tensor

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.numerics.bits import compare, hexadecimal

# (call, tolerance, parameters by keyword) -> what is wrong, or "".
Predicate: TypeAlias = Callable[..., str]


def difference(
    found: Tensor,
    expected: Tensor,
    tolerance: Tolerance,
    *,
    allowed: Tensor | float | None = None,
    words: str = "output",
) -> str:
    """What is wrong, or "". `allowed` is the derived bound, or what a relative tolerance is relative to."""
    if found.shape != expected.shape:
        return f"{words}: shape {list(found.shape)} != {list(expected.shape)}"
    if tolerance.kind == "bitwise":
        return _bitwise(found, expected, words)
    error = (found.double() - expected.double()).abs()
    bound = torch.as_tensor(_bound(tolerance, found, expected, allowed), dtype=torch.float64, device=error.device)
    # Equal infinities are equal; a NaN is right only where one is expected.
    same = (found.double() == expected.double()) | (found.isnan() & expected.isnan())
    wrong = ~(same | (error <= bound))
    if not bool(wrong.any()):
        return ""
    index = tuple(int(place[0]) for place in torch.nonzero(wrong, as_tuple=True))
    at = f"first {list(index)}: {hexadecimal(float(found[index]))}, wanted {hexadecimal(float(expected[index]))}"
    limit = float(bound.expand(error.shape)[index])
    size = f"error {float(error[index]):.3g}, allowed {limit:.3g}"
    return f"{words}: {int(wrong.sum())} of {wrong.numel()} beyond the bound; {at}, {size}"


def _bitwise(found: Tensor, expected: Tensor, words: str) -> str:
    if not found.is_floating_point():
        places = torch.nonzero(found != expected)
        if not len(places):
            return ""
        index = tuple(places[0].tolist())
        return f"{words}: {len(places)} differ; first {list(index)}: {found[index]} != {expected[index]}"
    differs = compare(expected.to(found.dtype), found)
    return f"{words}: {differs}" if differs is not None else ""


def _bound(tolerance: Tolerance, found: Tensor, expected: Tensor, allowed: Tensor | float | None) -> Tensor | float:
    if tolerance.kind == "abs":
        return float(tolerance.value or 0.0)
    if tolerance.kind == "rel":
        scale = expected.double().abs() if allowed is None else allowed
        return float(tolerance.value or 0.0) * scale
    if tolerance.kind == "ulp":
        return float(tolerance.value or 0.0) * ulp(expected, found.dtype)
    if allowed is None:
        raise ValueError(f"a tolerance of kind {tolerance.kind} needs the bound that was derived")
    return allowed


def ulp(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance to the next number of the format, at each value."""
    info = torch.finfo(dtype)
    magnitude = values.double().abs().clamp(min=info.tiny)
    spacing: Tensor = torch.exp2(torch.floor(torch.log2(magnitude))) * info.eps
    return spacing


def falls(y: Tensor, tolerance: Tolerance) -> str:
    """Where values fall along the last axis: by a bit in 16-bit formats, by more than the tolerance in float32."""
    along = y.double()
    slack = float(tolerance.value or 0.0) * ulp(along[..., :-1], y.dtype) if y.dtype == torch.float32 else 0.0
    down = along[..., :-1] - along[..., 1:] > slack
    if not bool(down.any()):
        return ""
    index = tuple(int(place[0]) for place in torch.nonzero(down, as_tuple=True))
    return f"falls at {list(index)} of the sorted row, from {float(along[index])}"


def not_refused(answers: Mapping[str, str]) -> str:
    """Which of these mistakes were taken, or answered in more than a line."""
    taken = [what for what, said in answers.items() if not said or "\n" in said]
    return f"not refused in one line: {', '.join(taken)}" if taken else ""


def sums_to(call: Call, tolerance: Tolerance, *, value: float, axis: int = -1) -> str:
    """The output's sum over an axis. Bound: the order's, three roundings, the format's own, and underflow."""
    terms, info = call.output.shape[axis], torch.finfo(call.output.dtype)
    unit = 0.0 if call.output.dtype == torch.float32 else info.eps / 2
    allowed = call.sum_error(terms) + 3 * 2.0**-24 + unit + terms * info.smallest_normal * info.eps
    total = call.output.double().sum(axis)
    return difference(total, torch.full_like(total, value), tolerance, allowed=allowed, words=f"sum over axis {axis}")


def within(call: Call, tolerance: Tolerance, *, low: float, high: float) -> str:
    """low <= output <= high, ends included and without slack."""
    values = call.output.double()
    outside = ~((values >= low) & (values <= high))
    if not bool(outside.any()):
        return ""
    index = tuple(int(place[0]) for place in torch.nonzero(outside, as_tuple=True))
    return f"output {list(index)} is {hexadecimal(float(values[index]))}; allowed: {low} to {high}"


def finite(call: Call, tolerance: Tolerance) -> str:
    """No infinity and no NaN."""
    bad = ~call.output.isfinite()
    if not bool(bad.any()):
        return ""
    index = tuple(int(place[0]) for place in torch.nonzero(bad, as_tuple=True))
    return f"output {list(index)} is {float(call.output[index])}; allowed: finite"


def matches(call: Call, tolerance: Tolerance) -> str:
    """The output against the contract's equation in float64."""
    expected = call.reference(
        *(value.double() if value.is_floating_point() else value for value in call.arguments.values())
    )
    return difference(call.output, expected, tolerance)


def same(call: Call, tolerance: Tolerance, *, object: str) -> str:
    """Another way to the same result, by import path, on the same arguments."""
    module, _, attribute = object.partition(":")
    other = getattr(importlib.import_module(module), attribute)
    return difference(call.output, other(*call.arguments.values()), tolerance, words=f"output against {object}")


def leaves_its_inputs_alone(call: Call, tolerance: Tolerance) -> str:
    """Arguments are read only: none is written, and two of one shape may be one memory."""
    given = {name: value.clone() for name, value in call.arguments.items()}
    wrong = difference(call.again(None, **given), call.output, tolerance, words="the same call again")
    for name, value in call.arguments.items():
        wrong = wrong or difference(given[name], value, tolerance, words=f"{name} after the call")
    first, *others = given
    for name in others if not wrong else ():
        if given[name].shape == given[first].shape and given[name].dtype == given[first].dtype:
            one, apart = ({**given, name: each} for each in (given[first], given[first].clone()))
            words = f"{first} and {name} in one memory"
            wrong = wrong or difference(call.again(None, **one), call.again(None, **apart), tolerance, words=words)
    return wrong


PREDICATES: Final[dict[str, Predicate]] = {
    "leaves_its_inputs_alone": leaves_its_inputs_alone,
    "sums_to": sums_to,
    "within": within,
    "finite": finite,
    "matches": matches,
    "same": same,
}
