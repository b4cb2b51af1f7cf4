"""How a checker drives a function that the predicates of its contract judge alone: no bound, no launch numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from samebits.contracts.spec import Arguments, Bounded, OperatorSpec
from samebits.numerics.recipes import make


def _exact(arguments: Arguments, _: Tensor, __: Callable[[int], float]) -> Mapping[str, Bounded]:
    raise ValueError("post-training states no bound by element; allowed: the predicates of its contract")


def spec(
    name: str, make: Callable[[Sequence[int], str, str, int], Arguments], rows: tuple[str, ...], shared: tuple[str, ...]
) -> OperatorSpec:
    """Shapes are rows and the numbers in a row."""
    return OperatorSpec(
        name=name,
        row_arguments=rows,
        shared_arguments=shared,
        shape_axes="NK",
        make=make,
        exact=_exact,
        launches=lambda backend, format: [],
        differentiable=False,
        without_gradient=(*rows, *shared),
    )


def numbers(recipe: str, shape: Sequence[int], seed: int, format: str) -> Tensor:
    """Numbers of a recipe in their format."""
    return torch.from_numpy(make(recipe, tuple(shape), seed, format)).to(getattr(torch, format))
