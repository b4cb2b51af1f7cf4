"""How a checker drives the kernel: what its inputs are, and how far from exact it may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from samebits.contracts.spec import Arguments, Bounded, OperatorSpec
from samebits.numerics.recipes import make


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    return {"x": torch.from_numpy(make(recipe, shape, seed, format)).to(getattr(torch, format))}


def _exact(arguments: Arguments, dy: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    """One product, rounded to float32 and then to the format: half a unit each, or what underflows."""
    x, info = arguments["x"].double(), torch.finfo(dy.dtype)
    positive = x.clamp(min=0)
    roundings = 2.0**-23 + info.eps
    y, dx = positive.square(), 2 * positive * dy.double()
    return {
        name: Bounded(exact=value, allowed=_beyond(value, info, value.abs() * roundings + info.tiny))
        for name, value in (("output", y), ("x", dx))
    }


def _beyond(exact: Tensor, info: torch.finfo, allowed: Tensor) -> Tensor:
    """Above the largest number infinity is as good as anything."""
    return torch.where(exact.abs() > info.max * (1 - info.eps), torch.inf, allowed)


def _launches(backend: str, format: str) -> Sequence[Mapping[str, object]]:
    return []


SPECS = {
    "square_of_positive": OperatorSpec(
        name="square_of_positive",
        row_arguments=("x",),
        shared_arguments=(),
        shape_axes="MH",
        make=_make,
        exact=_exact,
        launches=_launches,
    )
}
