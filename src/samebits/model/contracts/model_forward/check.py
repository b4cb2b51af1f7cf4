"""How a checker drives a forward pass: sequences, tokens and layers; the recipe makes the embedding."""

from __future__ import annotations

from collections.abc import Sequence

from samebits.contracts.spec import Arguments
from samebits.model.contracts import small_model
from samebits.model.contracts.specs import spec


def make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    sequences, tokens, layers = shape
    text = small_model.make_text(sequences * tokens, seed).reshape(sequences, tokens)
    weights = small_model.make(tokens, layers, recipe, format, seed)["weights"]
    return {"ids": text, "weights": weights}


SPECS = {"model_forward": spec("model_forward", "BSL", make, rows=("ids",), shared=("weights",))}
