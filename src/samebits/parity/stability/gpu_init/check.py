"""How a checker drives the optimizer's first step: a row is a parameter."""

from __future__ import annotations

from collections.abc import Sequence

from samebits.contracts.door import Arguments
from samebits.parity.stability.doors import door, numbers


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    return {"param": numbers(recipe, shape, seed, format)}


DOORS = {"gpu_init": door("gpu_init", "MH", _make, rows=("param",))}
