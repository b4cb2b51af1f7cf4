"""What every operator computes, forward and backward, and how large an error its bound lets pass.

Knows no operator by name; each brings its inputs, its exact values and its bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from samebits.contracts.spec import Bounded, Function
from samebits.model.contracts.operators import OUTPUT, Asked, Declared, declared_operators, results

BOUNDS = 8
"""How many bounds off a planted error is. Half an ulp is the least bound, and four ulps are representable."""


def unchanged(function: Function) -> Function:
    return function


def computed(
    size: Tensor, recipe: Tensor, like: Tensor, seed: Tensor, *, wrap: Callable[[Function], Function] = unchanged
) -> Tensor:
    """float64: the outputs and gradients of every operator, end to end. `wrap`: see `results`."""
    asked = Asked.of(size, recipe, like, seed)
    found = (results(declared, asked, wrap) for declared in declared_operators())
    return torch.cat([value.double().reshape(-1) for each in found for value in each.values()])


def bounded(asked: Asked) -> Iterator[tuple[Declared, dict[str, Tensor], dict[str, Bounded]]]:
    """Each operator with its results and their bounds."""
    for declared in declared_operators():
        found = results(declared, asked)
        dy = asked.cotangent(found[OUTPUT])
        yield declared, found, declared.bounds(asked.arguments(declared), dy, asked.format)


def honest(bound: Bounded) -> Tensor:
    return bound.allowed


def unseen(
    size: Tensor, recipe: Tensor, like: Tensor, seed: Tensor, *, allowed: Callable[[Bounded], Tensor] = honest
) -> Tensor:
    """int64 (results of all operators, 2): places at which an error of eight bounds is within the bound; whether half
    the result is within it everywhere. `allowed`, for planted faults: the bound that is taken."""
    rows = []
    for _, found, bounds in bounded(Asked.of(size, recipe, like, seed)):
        for name, value in found.items():
            exact, bound = bounds[name].exact, allowed(bounds[name])
            passes = (_off(value, bound).double() - exact).abs() <= bound
            halved = bool(exact.any()) and bool((exact.abs() / 2 <= bound).all())
            rows.append([int(passes.sum()), int(halved)])
    return torch.tensor(rows)


def _off(value: Tensor, bound: Tensor) -> Tensor:
    """A result that is so many bounds too large, and at least the next number of its dtype."""
    if not value.is_floating_point():
        return value + 1
    moved = (value.double() + BOUNDS * bound).to(value.dtype)
    return torch.nextafter(moved, torch.full_like(moved, torch.inf))
