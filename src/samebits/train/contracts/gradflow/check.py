"""How a checker drives a backward pass: tokens of one sequence and weights; rows that meet a residual."""

from __future__ import annotations

from collections.abc import Sequence

from samebits.contracts.spec import Arguments
from samebits.model.contracts import small_model
from samebits.model.contracts.specs import numbers, spec


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    tokens, layers = shape
    return small_model.make(tokens, layers, recipe, format, seed)


def _make_residual(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    rows, width = shape
    return {
        "x": numbers(recipe, (rows, width), 3 * seed, format),
        "residual": numbers("normal", (rows, width), 3 * seed + 1, format),
        "weight": numbers("normal", (width,), 3 * seed + 2, format),
    }


SPECS = {
    "gradflow": spec("gradflow", "TL", _make, rows=("ids", "targets", "upstream"), shared=("weights",)),
    "residual": spec("residual", "MH", _make_residual, rows=("x", "residual"), shared=("weight",), differentiable=True),
}
