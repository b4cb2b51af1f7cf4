"""The matrix product on the CPU: hands strides and pointers to the C++ kernel beside this file."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops._cpu import FORMATS, pointer, run


def gemm(a_MK: Tensor, b_KN: Tensor, *, bias_N: Tensor | None = None, accumulator_MN: Tensor | None = None) -> Tensor:
    """round(a b + bias), or the accumulator with a b added to it, in place."""
    (rows, depth), columns = a_MK.shape, b_KN.shape[1]
    out = accumulator_MN if accumulator_MN is not None else torch.empty(rows, columns, dtype=a_MK.dtype)
    if bias_N is not None:
        bias_N = bias_N.contiguous()
    resumed = accumulator_MN is not None
    run(
        "matmul",
        "iiqqqpqqpqqppp",
        FORMATS[a_MK.dtype],
        FORMATS[out.dtype],
        rows,
        columns,
        depth,
        a_MK.data_ptr(),
        *a_MK.stride(),
        b_KN.data_ptr(),
        *b_KN.stride(),
        pointer(bias_N),
        pointer(accumulator_MN),
        None if resumed else out.data_ptr(),
    )
    return out
