"""How far from exact: within the bound that follows from the declared order, against float64. Not bitwise.

A function that declares no order is held to the weakest bound, that of a chain one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from samebits.checker.cases import FINITE_RECIPES, Case
from samebits.checker.driving import OUTPUT, Setting, begin, everything, label
from samebits.checker.outcome import Compared
from samebits.contracts.orders import sum_error
from samebits.contracts.spec import Bounded
from samebits.numerics.bits import compare, hexadecimal

WEAKEST_ORDER = "chain-1"


def accuracy(setting: Setting, case: Case) -> Iterator[Compared]:
    """Every element of the output and of every gradient is within its own derived bound.

    Where a recipe makes results that are not finite, those elements whose exact value and bound are known."""
    prepared, found = begin(setting, case, everything(setting.spec))
    error = partial(sum_error, setting.orders.get(case.format, WEAKEST_ORDER))
    arguments = {name: value.cpu() for name, value in prepared.arguments.items()}
    exact = setting.spec.exact(arguments, prepared.cotangent.cpu(), error)
    asked = {name: each for name, each in exact.items() if name == OUTPUT or setting.spec.differentiable}
    if case.recipe not in FINITE_RECIPES:
        asked = {name: _where_known(each) for name, each in asked.items()}
        if all(bool(each.allowed.isinf().all()) for each in asked.values()):
            return
    if setting.reference is not None:
        yield _same_equation(case, setting.reference(*arguments.values()), exact[OUTPUT].exact)
    for name, bounded in asked.items():
        yield _within(case, name, found[name].cpu(), bounded)


def _where_known(bounded: Bounded) -> Bounded:
    """Anything is allowed where float64 has no number for the value or for the bound."""
    known = bounded.exact.isfinite() & bounded.allowed.isfinite()
    return Bounded(exact=bounded.exact, allowed=bounded.allowed.where(known, torch.inf))


def _same_equation(case: Case, equation: Tensor, exact: Tensor) -> Compared:
    """What a spec calls exact is what the contract's equation computes."""
    differs = compare(equation, exact)
    return Compared(case, f"the contract's equation against the spec's exact value: {differs}" if differs else "")


def _within(case: Case, name: str, found: Tensor, bounded: Bounded) -> Compared:
    exact, allowed = bounded.exact, bounded.allowed
    if found.shape != exact.shape:
        return Compared(case, f"{label(name)}: shape {list(found.shape)} != {list(exact.shape)}")
    # Where the exact value is beyond the format's largest number, infinity is as good as anything.
    error = torch.where(allowed.isinf(), 0.0, (found.double() - exact).abs())
    outside = ~(error <= allowed)
    if outside.any():
        index = tuple(int(place[0]) for place in torch.nonzero(outside, as_tuple=True))
        value, wanted = float(found[index]), float(exact[index])
        count = f"{int(outside.sum())} of {outside.numel()} beyond the bound"
        error_text = f"error {abs(value - wanted):.3g}, allowed {float(allowed[index]):.3g}"
        first = f"first {list(index)}: {hexadecimal(value)}, exact {hexadecimal(wanted)}, {error_text}"
        return Compared(case, f"{label(name)}: {count}; {first}")
    share = torch.where(allowed > 0, error / allowed, 0.0)
    return Compared(case, share=float(share.max()) if share.numel() else 0.0)
