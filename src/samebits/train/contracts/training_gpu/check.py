"""How a checker drives a short run on a device: tokens, layers and steps, as `train_stable` has them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.contracts.spec import Arguments
from samebits.model.contracts import small_model
from samebits.model.contracts.specs import fractions, spec
from samebits.train.contracts.training_gpu import HOST


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    tokens, layers, steps = shape
    return {
        "text": small_model.make_text(tokens + 1, seed),
        "weights": small_model.make_weights(layers, recipe, format, small_model.seed_of(seed, tokens)),
        "rate": torch.from_numpy(2.0 ** -(4 + 6 * fractions((1,), 9 * seed + 5))),
        "steps": torch.tensor([steps]),
    }


def _make_asked(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    return {**_make(shape, recipe, format, seed), "device": torch.tensor([HOST])}


SHARED = ("weights", "rate", "steps")
SPECS = {
    "training_gpu": spec("training_gpu", "TLS", _make, rows=("text",), shared=SHARED),
    "device_used": spec("device_used", "TLS", _make_asked, rows=("text",), shared=(*SHARED, "device")),
}
