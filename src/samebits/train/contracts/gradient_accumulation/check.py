"""How a checker drives accumulation: rows of tokens with as many targets as are drawn, and the size of a pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.contracts.spec import Arguments
from samebits.model.contracts import small_model
from samebits.model.contracts.specs import numbers, spec
from samebits.train.contracts.small_run import make_texts


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    sequences, tokens, micro = shape
    weights = small_model.make_weights(1, recipe, format, small_model.seed_of(seed, tokens))
    return {**make_texts(sequences, tokens, seed), "weights": weights, "micro": torch.tensor([micro])}


def _make_losses(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    passes, targets = shape
    return {"losses": numbers(recipe, shape, seed, format).abs(), "count": torch.tensor([passes * targets])}


SPECS = {
    "accumulation": spec("accumulation", "NTM", _make, rows=("text", "counts"), shared=("weights", "micro")),
    "mean_loss": spec("mean_loss", "NT", _make_losses, rows=("losses",), shared=("count",)),
}
