"""How a checker drives products and attention between sentinels."""

from __future__ import annotations

from collections.abc import Sequence

from samebits.contracts.spec import Arguments
from samebits.model.contracts.specs import numbers, spec
from samebits.train.contracts.gemm_args import HEAD


def _make_linear(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    rows, depth, columns = shape
    return {
        "x": numbers(recipe, (rows, depth), 2 * seed, format),
        "weight": numbers("normal", (columns, depth), 2 * seed + 1, format),
    }


def _make_accumulate(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    rows, depth, columns = shape
    return {
        "x": numbers(recipe, (rows, depth), 2 * seed, format),
        "dy": numbers("normal", (rows, columns), 2 * seed + 1, format),
    }


def _make_attention(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    tokens, heads = shape
    return {name: numbers(recipe, (tokens, heads * HEAD), 3 * seed + i, format) for i, name in enumerate("qkv")}


SPECS = {
    "linear_in_guards": spec("linear_in_guards", "MKN", _make_linear, rows=("x",), shared=("weight",)),
    "accumulate_in_guards": spec("accumulate_in_guards", "MKN", _make_accumulate, rows=("x", "dy")),
    "attention_in_guards": spec("attention_in_guards", "TH", _make_attention, rows=("q", "k", "v")),
}
