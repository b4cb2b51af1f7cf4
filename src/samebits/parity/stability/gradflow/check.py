"""How a checker drives a backward pass: tokens of one sequence and weights; rows that meet a residual."""

from __future__ import annotations

from collections.abc import Sequence

from samebits.contracts.spec import Arguments
from samebits.parity.stability import small_chain
from samebits.parity.stability.specs import numbers, spec


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    """The recipe makes the hidden states; a row scale that a norm takes away would teach nothing."""
    tokens, layers = shape
    made = small_chain.make(tokens, layers, small_chain.USUAL, format, seed)
    return {**made, "hidden": numbers(recipe, made["hidden"].shape, small_chain.seed_of(3 * seed + 1, tokens), format)}


def _make_residual(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    rows, width = shape
    return {
        "x": numbers(recipe, (rows, width), 3 * seed, format),
        "residual": numbers("normal", (rows, width), 3 * seed + 1, format),
        "weight": numbers("normal", (width,), 3 * seed + 2, format),
    }


SPECS = {
    "gradflow": spec("gradflow", "TL", _make, rows=("hidden", "targets", "upstream"), shared=("weights",)),
    "residual": spec("residual", "MH", _make_residual, rows=("x", "residual"), shared=("weight",), differentiable=True),
}
