"""How a checker asks all operators for all dtypes: the seed draws the numbers, and nothing else is left open."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.contracts.spec import Arguments
from samebits.model.contracts.specs import spec


def make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    return {"seed": torch.tensor([seed])}


SPECS = {"operator_dtypes": spec("operator_dtypes", "N", make, rows=("seed",))}
