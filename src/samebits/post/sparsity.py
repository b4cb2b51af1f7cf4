"""Which weights of a matrix are set to zero: by magnitude, or by WANDA's magnitude times the norm of what flows in.

Exactly the stated share of every group: of the whole matrix (magnitude), of each row (WANDA), or two of every four
neighbours (2:4). The least scores go, of equal ones the first by index. Scores are float64 products, each rounded once.
Knows no file."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

import numpy as np
import torch
from torch import Tensor

METHODS: Final = ("magnitude", "wanda")
# Two of every four neighbours of a row: the pattern that tensor cores skip.
PATTERN: Final = (2, 4)


def scores(weight: Tensor, squares: Tensor | None) -> Tensor:
    """float64: |w|, times the root of each input channel's sum of squares where there are some."""
    found = weight.detach().double().abs()
    if squares is None:
        return found
    # numpy's root of float64 is the correctly rounded one.
    return found * torch.from_numpy(np.sqrt(squares.numpy()))


def pruned(weight: Tensor, *, sparsity: float, squares: Tensor | None = None, pattern: bool = False) -> Tensor:
    """The weight with exactly the stated share of every group set to +0; what is kept keeps its bits.

    With `squares` (WANDA) a group is a row, without them (magnitude) the matrix, with `pattern` four neighbours."""
    if not 0.0 <= sparsity <= 1.0:
        raise ValueError(f"prune: sparsity is {sparsity}; allowed: 0 to 1")
    found = scores(weight, squares)
    if pattern:
        groups = _fours(found)
        count = PATTERN[0]
    else:
        groups = found if squares is not None else found.reshape(1, -1)
        count = share_of(groups.shape[1], sparsity)
    if count == 0:
        return weight.clone()
    order = torch.sort(groups, dim=1, stable=True).indices[:, :count]
    gone = torch.zeros(groups.shape, dtype=torch.bool).scatter_(1, order, True)
    return weight.masked_fill(gone.reshape(weight.shape), 0.0)


def share_of(count: int, share: float) -> int:
    """floor(share * count) of the share that was written: 0.29 of 100 is 29, though 0.29 as a float64 is less."""
    nearest = round(share * count)
    return nearest if nearest / count == share else math.floor(Fraction(share) * count)


def _fours(found: Tensor) -> Tensor:
    if found.shape[1] % PATTERN[1]:
        raise ValueError(f"prune: rows have {found.shape[1]} weights; allowed: a multiple of {PATTERN[1]} for 2:4")
    return found.reshape(-1, PATTERN[1])
