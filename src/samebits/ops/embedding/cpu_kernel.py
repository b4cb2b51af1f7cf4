"""The embedding on the CPU: hands pointers to the C++ kernel beside this file. Rows come contiguous, ids as int64."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops._cpu import FORMATS, pointer, run


def forward(ids_M: Tensor, weight_VH: Tensor) -> Tensor:
    """Row ids[m] of the table, for every m."""
    width = weight_VH.shape[1]
    y_MH = weight_VH.new_empty(ids_M.shape[0], width)
    bytes_of_a_row = width * weight_VH.element_size()
    run("embedding_forward", "qqppp", ids_M.shape[0], bytes_of_a_row, *map(pointer, (ids_M, weight_VH, y_MH)))
    return y_MH


def backward(dy_MH: Tensor, ids_M: Tensor, vocabulary: int, padding: int) -> Tensor:
    """The gradient of the table in dy's dtype."""
    dweight_VH = dy_MH.new_zeros(vocabulary, dy_MH.shape[1])
    if dy_MH.dtype == torch.float32:
        accumulate(dy_MH, ids_M, dweight_VH, padding)
        return dweight_VH
    # Only the rows asked for need float32 sums; a table of them would be many times the size of the batch.
    distinct_D, numbers_M = torch.unique(ids_M, return_inverse=True)
    sums_DH = torch.zeros(distinct_D.shape[0], dy_MH.shape[1])
    accumulate(dy_MH, numbers_M, sums_DH, -1)
    dweight_VH.index_copy_(0, distinct_D, sums_DH.to(dy_MH.dtype))
    if padding >= 0:
        dweight_VH[padding] = 0
    return dweight_VH


def accumulate(dy_MH: Tensor, ids_M: Tensor, accumulator_VH: Tensor, padding: int) -> None:
    """The chains over positions, resumed from the accumulator, in place; row `padding` gets nothing."""
    tensors = (ids_M, dy_MH, accumulator_VH)
    run("embedding_accumulate", "iqqqppp", FORMATS[dy_MH.dtype], *dy_MH.shape, padding, *map(pointer, tensors))
