"""How a checker asks about calls in C++: in so many parts, among which they are dealt out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from samebits.contracts.spec import Arguments, Bounded, OperatorSpec


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    return {"parts": torch.arange(shape[0])}


def _exact(arguments: Arguments, _: Tensor, __: Callable[[int], float]) -> Mapping[str, Bounded]:
    raise ValueError("no bound by element is stated here; allowed: the predicates of the contract")


def _launches(backend: str, format: str) -> Sequence[Mapping[str, object]]:
    return []


SPECS = {
    "host_launch": OperatorSpec(
        name="host_launch",
        row_arguments=("parts",),
        shared_arguments=(),
        shape_axes="P",
        make=_make,
        exact=_exact,
        launches=_launches,
        differentiable=False,
        without_gradient=("parts",),
    )
}
