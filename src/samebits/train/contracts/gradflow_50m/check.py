"""How a checker drives a pass through 50 million weights: tokens of one sequence, weights as a run starts with them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.contracts.spec import Arguments
from samebits.model.contracts.small_model import joined
from samebits.model.contracts.specs import fractions, numbers, spec
from samebits.numerics.exactly import inverse_root
from samebits.train.contracts.gradflow_50m import CONFIG, SHAPES


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    (tokens,) = shape
    text = torch.from_numpy((fractions((tokens + 1,), 3 * seed) * CONFIG.vocab_size).astype("int64"))
    made = {}
    for number, (name, size) in enumerate(SHAPES.items()):
        drawn = numbers(recipe, size, 1000 * seed + number, format)
        made[name] = 1 + drawn * 0.1 if len(size) == 1 else drawn * inverse_root(size[-1])
    upstream = numbers(recipe, (tokens,), 3 * seed + 1, format)
    return {"ids": text[:-1], "targets": text[1:], "upstream": upstream, "weights": joined(made)}


SPECS = {"gradflow_50m": spec("gradflow_50m", "T", _make, rows=("ids", "targets", "upstream"), shared=("weights",))}
