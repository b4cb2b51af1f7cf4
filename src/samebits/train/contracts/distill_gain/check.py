"""How a checker drives a teacher and its students: rows of a language that can be learnt, and weights to begin from.

In the language each token is followed by one of four others, which the seed chooses, half of the time by the first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from samebits.contracts.spec import Arguments
from samebits.model.contracts.small_model import SMALL, make_weights, seed_of
from samebits.model.contracts.specs import fractions, spec

HELD_OUT = 32
STUDENTS = 5
# How probable the followers of a token are, added up.
UP_TO = (0.5, 0.75, 0.9, 1.0)


def rows_of(rows: int, tokens: int, seed: int) -> Tensor:
    """So many rows of one language, a target for each of so many tokens."""
    followers = (fractions((SMALL.vocab_size, len(UP_TO)), 5 * seed) * SMALL.vocab_size).astype(np.int64)
    choices = np.searchsorted(UP_TO, fractions((rows, tokens + 1), 5 * seed_of(seed, tokens) + 1), side="right")
    text = np.empty((rows, tokens + 1), dtype=np.int64)
    text[:, 0] = choices[:, 0]
    for place in range(1, tokens + 1):
        text[:, place] = followers[text[:, place - 1], choices[:, place]]
    return torch.from_numpy(text)


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    rows, tokens, steps = shape
    text = rows_of(rows + HELD_OUT, tokens, seed)
    drawn = [make_weights(1, recipe, format, 8 * seed + number) for number in range(STUDENTS + 1)]
    return {"text": text[:rows], "held": text[rows:], "weights": torch.stack(drawn), "steps": torch.tensor([steps])}


SPECS = {"distill_gain": spec("distill_gain", "RTS", _make, rows=("text",), shared=("held", "weights", "steps"))}
