"""WANDA's rule row by row, number by number, in plain Python: what goes is listed by score and index."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from samebits.post.contracts.pruning import SIZES


def pruned_weight64(weight: Tensor, squares: Tensor, share: Tensor) -> Tensor:
    """float64 (N, K)."""
    rows = []
    for row in weight.double().tolist():
        scored = [
            (abs(w) * math.sqrt(s), place) for place, (w, s) in enumerate(zip(row, squares.tolist(), strict=True))
        ]
        gone = {place for _, place in sorted(scored)[: _count(share, len(row))]}
        rows.append([0.0 if place in gone else w for place, w in enumerate(row)])
    return torch.tensor(rows, dtype=torch.float64)


def pruned_model64(weights: Tensor, share: Tensor) -> Tensor:
    """Magnitude, the matrices of layers one by one: of each the floor(share * n) least are 0, ties by index."""
    found = weights.double().clone()
    for row in found:
        start = 0
        for name, size in SIZES.items():
            if ".layers." in name and "norm" not in name:
                order = torch.sort(row[start : start + size].abs(), stable=True).indices
                row[start + order[: _count(share, size)]] = 0.0
            start += size
    return found


def _count(share: Tensor, size: int) -> int:
    """By the shortest decimal that reads as this number, as somebody writes it."""
    return math.floor(Fraction(repr(float(share[0]))) * size)
