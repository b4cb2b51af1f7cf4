"""How a checker drives attention whose records are made by keyword or by position."""

from __future__ import annotations

from collections.abc import Sequence

from samebits.contracts.spec import Arguments
from samebits.model.contracts.specs import numbers, spec
from samebits.train.contracts.kernel_sizes import HEAD


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    tokens, heads = shape
    return {name: numbers(recipe, (tokens, heads * HEAD), 3 * seed + i, format) for i, name in enumerate("qkv")}


SPECS = {"kernel_sizes": spec("kernel_sizes", "TH", _make, rows=("q", "k", "v"))}
