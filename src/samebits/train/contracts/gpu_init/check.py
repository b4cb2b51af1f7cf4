"""How a checker drives the optimizer's first step: a row is a parameter."""

from __future__ import annotations

from collections.abc import Sequence

from samebits.contracts.spec import Arguments
from samebits.model.contracts.specs import numbers, spec


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    return {"param": numbers(recipe, shape, seed, format)}


SPECS = {"gpu_init": spec("gpu_init", "MH", _make, rows=("param",))}
