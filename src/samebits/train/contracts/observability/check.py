"""How a checker drives observed runs: rows of tokens, their targets, steps, and the step at which a run is lost."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.contracts.spec import Arguments
from samebits.model.contracts.specs import spec
from samebits.train.contracts.small_run import make_texts


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    sequences, tokens, steps = shape
    return {**make_texts(sequences, tokens, seed), "steps": torch.tensor([steps])}


def _make_lost(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    return {**_make(shape, recipe, format, seed), "at": torch.tensor([1 + seed % shape[2]])}


SPECS = {
    "observability": spec("observability", "NTS", _make, rows=("text", "counts"), shared=("steps",)),
    "lost_run": spec("lost_run", "NTS", _make_lost, rows=("text", "counts"), shared=("steps", "at")),
}
