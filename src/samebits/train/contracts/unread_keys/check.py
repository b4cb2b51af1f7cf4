"""How a checker drives configurations: a table of numbers between 0 and 1, a row each."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.contracts.spec import Arguments
from samebits.model.contracts.specs import fractions, spec
from samebits.train.contracts.unread_keys import NUMBERS


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    """Neither 0 nor 1: 0 is no rate, and 1 no beta."""
    drawn = fractions((shape[0], len(NUMBERS)), seed)
    return {"table": torch.from_numpy(2.0**-10 + drawn * (1 - 2.0**-9))}


SPECS = {"unread_keys": spec("unread_keys", "R", _make, rows=("table",))}
