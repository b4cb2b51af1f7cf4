"""WANDA's rule row by row, number by number, in plain Python: what goes is listed by score and index."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def pruned_weight64(weight: Tensor, squares: Tensor, share: Tensor) -> Tensor:
    """float64 (N, K)."""
    rows = []
    for row in weight.double().tolist():
        scored = [
            (abs(w) * math.sqrt(s), place) for place, (w, s) in enumerate(zip(row, squares.tolist(), strict=True))
        ]
        gone = {place for _, place in sorted(scored)[: math.floor(float(share[0]) * len(row))]}
        rows.append([0.0 if place in gone else w for place, w in enumerate(row)])
    return torch.tensor(rows, dtype=torch.float64)
