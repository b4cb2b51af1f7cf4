"""How a checker drives a short training run: tokens, layers and steps; the recipe makes the first weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.contracts.spec import Arguments
from samebits.model.contracts import small_model
from samebits.model.contracts.specs import fractions, spec


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    tokens, layers, steps = shape
    return {
        "text": small_model.make_text(tokens + 1, seed),
        "weights": small_model.make_weights(layers, recipe, format, small_model.seed_of(seed, tokens)),
        "rate": torch.from_numpy(2.0 ** -(4 + 6 * fractions((1,), 9 * seed + 5))),
        "steps": torch.tensor([steps]),
    }


SPECS = {"train_stable": spec("train_stable", "TLS", _make, rows=("text",), shared=("weights", "rate", "steps"))}
