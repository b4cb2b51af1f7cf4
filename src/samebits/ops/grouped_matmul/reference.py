"""The grouped product, said plainly: the definition that every backend is held to.

Order: each row's product, and each expert's sum over its rows, is the chain of matmul's own definition (k, or rows,
ascending, one fused multiply-add a step). In float64 the same formulas are plain torch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from samebits.ops.matmul.reference import gemm


def _groups(rows_M: Tensor | None, ends_E: Tensor, count: int) -> Iterator[tuple[int, Tensor]]:
    """Each expert that has rows, and which, in the order of the batch."""
    ordered = torch.arange(count, device=ends_E.device) if rows_M is None else rows_M
    for expert, (first, end) in enumerate(pairwise([0, *ends_E.tolist()])):
        if first < end:
            yield expert, ordered[first:end]


def forward(x_MK: Tensor, weight_EKN: Tensor, rows_M: Tensor | None, ends_E: Tensor, y_MN: Tensor) -> None:
    """y[m] <- x[m] times the weight of its expert."""
    for expert, rows in _groups(rows_M, ends_E, len(x_MK)):
        y_MN[rows] = gemm(x_MK[rows], weight_EKN[expert])


def dweight(
    x_MK: Tensor, dy_MN: Tensor, rows_M: Tensor | None, ends_E: Tensor, sums_EKN: Tensor, *, resumed: bool
) -> None:
    """sums[e] <- the chain of x^T dy over the rows of e, from what the sums hold or from +0."""
    for expert, rows in _groups(rows_M, ends_E, len(x_MK)):
        left_KM, right_MN = x_MK[rows].T, dy_MN[rows]
        if resumed:
            gemm(left_KM, right_MN, accumulator_MN=sums_EKN[expert])
        else:
            sums_EKN[expert] = gemm(left_KM, right_MN)


def grouped_matmul64(x: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
    """y[m,n] = sum_k x[m,k] weight[expert[m],k,n], in float64."""
    y = torch.zeros(x.shape[0], weight.shape[2], dtype=torch.float64, device=x.device)
    for number in set(expert.tolist()):
        rows = expert == number
        y[rows] = x[rows].double() @ weight[number].double()
    return y
