"""How a checker drives a run on a late stream: tokens, layers and steps, and a millisecond a read."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.contracts.spec import Arguments
from samebits.model.contracts import small_model
from samebits.model.contracts.specs import spec

CYCLES = 2_000_000


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    tokens, layers, steps = shape
    return {
        "text": small_model.make_text(tokens + 1, seed),
        "weights": small_model.make_weights(layers, recipe, format, small_model.seed_of(seed, tokens)),
        "rate": torch.tensor([2.0**-8]),
        "steps": torch.tensor([steps]),
        "cycles": torch.tensor([CYCLES]),
    }


SPECS = {"late_log": spec("late_log", "TLS", _make, rows=("text",), shared=("weights", "rate", "steps", "cycles"))}
