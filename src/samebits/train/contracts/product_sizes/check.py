"""How a checker asks about calls of products: in so many parts, among which all calls are dealt out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.contracts.spec import Arguments
from samebits.model.contracts.specs import spec


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    return {"parts": torch.arange(shape[0])}


SPECS = {"product_sizes": spec("product_sizes", "P", _make, rows=("parts",))}
