"""OperatorSpecs of what is more than an operator: judged by the predicates of its contract alone, so nothing is said of
bounds or launch numbers.

Knows no component."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from samebits.contracts.spec import Arguments, Bounded, OperatorSpec
from samebits.numerics.elementary.philox import philox_uint32_native
from samebits.numerics.recipes import make


def _exact(arguments: Arguments, _: Tensor, __: Callable[[int], float]) -> Mapping[str, Bounded]:
    raise ValueError("no bound by element is stated here; allowed: the predicates of the contract")


def _launches(backend: str, format: str) -> Sequence[Mapping[str, object]]:
    return []


def spec(
    name: str,
    axes: str,
    make: Callable[[Sequence[int], str, str, int], Arguments],
    *,
    rows: tuple[str, ...],
    shared: tuple[str, ...] = (),
    differentiable: bool = False,
) -> OperatorSpec:
    """A spec through which only predicates go."""
    return OperatorSpec(
        name=name,
        row_arguments=rows,
        shared_arguments=shared,
        shape_axes=axes,
        make=make,
        exact=_exact,
        launches=_launches,
        differentiable=differentiable,
        without_gradient=() if differentiable else (*rows, *shared),
    )


def numbers(recipe: str, shape: Sequence[int], seed: int, format: str) -> Tensor:
    """Numbers of a recipe in their format."""
    return torch.from_numpy(make(recipe, tuple(shape), seed, format)).to(getattr(torch, format))


def fractions(shape: Sequence[int], seed: int) -> np.ndarray:
    """float64 in 0 to 1, 1 left out; the same on every machine."""
    words = philox_uint32_native(seed, 0, int(np.prod(shape)), threads=1)
    return words.reshape(tuple(shape)).astype(np.float64) * 2.0**-32
