"""How a checker drives runs whose log is judged: rows of tokens, their targets, and steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.contracts.spec import Arguments
from samebits.model.contracts import small_model
from samebits.model.contracts.specs import spec
from samebits.train.contracts.small_run import make_texts


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    sequences, tokens, steps = shape
    return {**make_texts(sequences, tokens, seed), "steps": torch.tensor([steps])}


def _make_timed(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    """Every sequence has all its targets: of a few tokens the trainer's own care is no small part of a step."""
    sequences, tokens, steps = shape
    text = make_texts(sequences, tokens, seed)["text"]
    weights = small_model.make_weights(1, recipe, format, small_model.seed_of(seed, tokens))
    return {
        "text": text,
        "counts": torch.full((sequences,), tokens),
        "weights": weights,
        "steps": torch.tensor([steps]),
    }


SPECS = {
    "losses": spec("losses", "NTS", _make, rows=("text", "counts"), shared=("steps",)),
    "covered": spec("covered", "NTS", _make_timed, rows=("text", "counts"), shared=("weights", "steps")),
}
