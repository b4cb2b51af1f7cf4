"""How a checker drives checkpoints: rows of tokens and steps of a run; layers of a model; places where runs stop."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.contracts.spec import Arguments
from samebits.model.contracts import small_model
from samebits.model.contracts.specs import fractions, spec
from samebits.train.contracts.small_run import make_texts


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    sequences, tokens, steps = shape
    weights = small_model.make_weights(1, recipe, format, small_model.seed_of(seed, tokens))
    numbers = {"steps": torch.tensor([steps]), "seed": torch.tensor([seed])}
    return {**make_texts(sequences, tokens, seed), "weights": weights, **numbers}


def _make_layers(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    return {"layers": torch.tensor([shape[0]]), "seed": torch.tensor([seed])}


def _make_places(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    """Steps, and sequences in whole updates, or with some left over that no update sees."""
    steps, updates, batch = shape
    left = int(fractions((1,), seed)[0] * batch)
    numbers = {"steps": steps, "sequences": updates * batch + left, "batch": batch}
    return {name: torch.tensor([value]) for name, value in numbers.items()}


SPECS = {
    "checkpoint": spec("checkpoint", "NTS", _make, rows=("text", "counts"), shared=("weights", "steps", "seed")),
    "held": spec("held", "L", _make_layers, rows=("layers",), shared=("seed",)),
    "position": spec("position", "SUB", _make_places, rows=("steps", "sequences", "batch")),
}
