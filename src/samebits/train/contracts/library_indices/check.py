"""How a checker asks about the library: in one part or two, between which the ends of a buffer are dealt out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.contracts.spec import Arguments
from samebits.model.contracts.specs import spec


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    return {"parts": torch.arange(shape[0])}


SPECS = {"library_indices": spec("library_indices", "P", _make, rows=("parts",))}
