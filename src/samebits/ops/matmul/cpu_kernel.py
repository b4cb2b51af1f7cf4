"""The matrix product on the CPU: hands strides and pointers to the C++ kernel beside this file."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops._cpu import format_of, run


def gemm(a_MK: Tensor, b_KN: Tensor, *, bias_N: Tensor | None = None, accumulator_MN: Tensor | None = None) -> Tensor:
    """round(a b + bias), or the accumulator with a b added to it, in place."""
    (rows, depth), columns = a_MK.shape, b_KN.shape[1]
    out = accumulator_MN if accumulator_MN is not None else torch.empty(rows, columns, dtype=a_MK.dtype)
    if bias_N is not None:
        bias_N = bias_N.contiguous()
    run(
        "matmul", format_of(a_MK), format_of(out), rows, columns, depth,
        a_MK, a_MK.stride(0), a_MK.stride(1), b_KN, b_KN.stride(0), b_KN.stride(1),
        bias_N, accumulator_MN, None if accumulator_MN is not None else out,
    )  # fmt: skip
    return out
