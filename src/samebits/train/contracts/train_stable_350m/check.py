"""How a checker drives a run of 350 million weights: tokens and steps; the recipe makes the first weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.contracts.spec import Arguments
from samebits.model.contracts.specs import fractions, numbers, spec
from samebits.numerics.exactly import inverse_root
from samebits.train.contracts.train_stable_350m import CONFIG, SHAPES


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    tokens, steps = shape
    text = torch.from_numpy((fractions((tokens + 1,), 3 * seed) * CONFIG.vocab_size).astype("int64"))
    made = []
    for number, size in enumerate(SHAPES.values()):
        drawn = numbers(recipe, size, 1000 * seed + number, format)
        made.append(1 + drawn * 0.1 if len(size) == 1 else drawn * inverse_root(size[-1]))
    return {
        "text": text,
        "weights": torch.cat([each.reshape(-1) for each in made]),
        "rate": torch.tensor([2.0**-10]),
        "steps": torch.tensor([steps]),
    }


SPECS = {
    "train_stable_350m": spec("train_stable_350m", "TS", _make, rows=("text",), shared=("weights", "rate", "steps"))
}
