"""How a checker drives a short training run: tokens, layers and steps; the recipe makes the initial weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.contracts.spec import Arguments
from samebits.parity.stability import small_chain
from samebits.parity.stability.specs import fractions, spec


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    tokens, layers, steps = shape
    made = small_chain.make(tokens, layers, recipe, format, seed)
    rates = torch.from_numpy(2.0 ** -(4 + 6 * fractions((steps,), 9 * seed + 5)))
    # The mean of minus the logprobs: a loss as training has it.
    return {**made, "upstream": torch.full((tokens,), -1.0 / tokens), "rates": rates}


SPECS = {
    "train_stable": spec(
        "train_stable", "TLS", _make, rows=("hidden", "targets", "upstream"), shared=("weights", "rates")
    )
}
