"""The embedding, said plainly: the definition that every backend is held to.

Order: the gradient of a table row is a chain over the positions with its number, ascending, from +0 or from what an
accumulator holds. Rounding: float32 after every addition, once to the dtype at the end; the result itself is a copy.
In float64 the same sums are plain torch, exact enough to judge the others against."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def forward(ids_M: Tensor, weight_VH: Tensor) -> Tensor:
    """Row ids[m] of the table, for every m."""
    return weight_VH[ids_M]


def backward(dy_MH: Tensor, ids_M: Tensor, vocabulary: int, padding: int) -> Tensor:
    """The gradient of the table in dy's dtype."""
    wide = torch.float64 if dy_MH.dtype == torch.float64 else torch.float32
    sums_VH = torch.zeros(vocabulary, dy_MH.shape[1], dtype=wide, device=dy_MH.device)
    accumulate(dy_MH, ids_M, sums_VH, padding)
    return sums_VH.to(dy_MH.dtype)


def accumulate(dy_MH: Tensor, ids_M: Tensor, accumulator_VH: Tensor, padding: int) -> None:
    """The chains over positions, resumed from the accumulator, in place; row `padding` gets nothing."""
    if dy_MH.dtype == torch.float64:
        kept = ids_M != padding
        accumulator_VH.index_add_(0, ids_M[kept], dy_MH[kept])
        return
    dy, sums = dy_MH.detach().float().cpu().numpy(), accumulator_VH.detach().cpu().numpy().copy()
    with np.errstate(invalid="ignore", over="ignore"):
        for token, row in zip(ids_M.tolist(), dy, strict=True):
            if token != padding:
                sums[token] = sums[token] + row
    accumulator_VH.copy_(torch.from_numpy(sums))


def embedding64(ids: Tensor, weight: Tensor) -> Tensor:
    """y[m,h] = weight[ids[m],h], in float64."""
    return weight.double()[ids]
