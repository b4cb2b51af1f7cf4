"""How a checker asks all operators at once: which of their own shapes, and a recipe, a format and a seed."""

from __future__ import annotations

from collections.abc import Sequence

from samebits.contracts.spec import Arguments
from samebits.model.contracts.operators import Asked
from samebits.model.contracts.specs import spec


def make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    return Asked(size=shape[0], recipe=recipe, format=format, seed=seed).tensors()


SPECS = {"operator_tolerance": spec("operator_tolerance", "N", make, rows=("size",), shared=("recipe", "like", "seed"))}
