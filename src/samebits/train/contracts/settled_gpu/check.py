"""How a checker drives runs on a device under watch: rows of tokens, their targets, weights, steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.contracts.spec import Arguments
from samebits.model.contracts import small_model
from samebits.model.contracts.specs import spec
from samebits.train.contracts.small_run import make_texts


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    sequences, tokens, steps = shape
    weights = small_model.make_weights(1, recipe, format, small_model.seed_of(seed, tokens))
    texts = make_texts(sequences, tokens, seed)
    # A query that sees one key has no gradient, and a trainer refuses a step of such queries alone.
    counts = texts["counts"].clamp(min=2)
    return {**texts, "counts": counts, "weights": weights, "steps": torch.tensor([steps])}


SPECS = {"settled_gpu": spec("settled_gpu", "NTS", _make, rows=("text", "counts"), shared=("weights", "steps"))}
