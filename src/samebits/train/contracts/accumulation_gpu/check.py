"""How a checker drives accumulation on a device: rows of tokens, their targets, a pass's size."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.contracts.spec import Arguments
from samebits.model.contracts import small_model
from samebits.model.contracts.specs import spec
from samebits.train.contracts.small_run import make_texts


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    sequences, tokens, micro = shape
    weights = small_model.make_weights(1, recipe, format, small_model.seed_of(seed, tokens))
    return {**make_texts(sequences, tokens, seed), "weights": weights, "micro": torch.tensor([micro])}


SPECS = {
    "accumulation_gpu": spec("accumulation_gpu", "NTM", _make, rows=("text", "counts"), shared=("weights", "micro"))
}
