"""How a checker drives ranks: rows of tokens, gradients and how many targets each rank has, numbers to be added up."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.contracts.spec import Arguments
from samebits.model.contracts import small_model
from samebits.model.contracts.specs import fractions, numbers, spec
from samebits.train.contracts.small_run import make_texts

MOST_TARGETS = 4096


def _make_run(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    ranks, sequences, tokens = shape
    return {
        **make_texts(sequences, tokens, seed),
        "weights": small_model.make_weights(1, recipe, format, small_model.seed_of(seed, tokens)),
        "rate": torch.from_numpy(2.0 ** -(4 + 6 * fractions((1,), 9 * seed + 5))),
        "size": torch.tensor([ranks]),
        "poisoned": torch.tensor([-1]),
    }


def _make_parts(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    counts = 1 + (fractions((shape[0],), 9 * seed + 7) * MOST_TARGETS).astype("int64")
    return {"parts_ND": numbers(recipe, shape, seed, format), "counts_N": torch.from_numpy(counts)}


def _make_sums(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    ranks, length, times = shape
    return {"parts_ND": numbers(recipe, (ranks, length), seed, format), "times": torch.tensor([times])}


SPECS = {
    "trained": spec(
        "trained", "NST", _make_run, rows=("text", "counts"), shared=("weights", "rate", "size", "poisoned")
    ),
    "averaged": spec("averaged", "ND", _make_parts, rows=("parts_ND", "counts_N")),
    "ended": spec("ended", "NDR", _make_sums, rows=("parts_ND",), shared=("times",)),
}
