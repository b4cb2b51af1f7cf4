"""How a checker asks about attention's launches: in so many parts, among which all kernels are dealt out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.contracts.spec import Arguments
from samebits.model.contracts.specs import spec


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    return {"parts": torch.arange(shape[0])}


SPECS = {"attention_indices": spec("attention_indices", "P", _make, rows=("parts",))}
