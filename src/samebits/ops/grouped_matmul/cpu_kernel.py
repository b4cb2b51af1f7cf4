"""The grouped product on the CPU: hands strides and pointers to the C++ kernel beside this file.

Rows are brought together by expert and put back by copies; where each expert's rows end is read by the kernel, so that
a captured call does right by other numbers of rows."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops._cpu import FORMATS, run


def _together(x: Tensor, rows_M: Tensor | None) -> Tensor:
    return x if rows_M is None else x.index_select(0, rows_M)


def forward(x_MK: Tensor, weight_EKN: Tensor, rows_M: Tensor | None, ends_E: Tensor, y_MN: Tensor) -> None:
    """y[m] <- x[m] times the weight of its expert."""
    x_MK = _together(x_MK, rows_M)
    found_MN = y_MN if rows_M is None else torch.empty_like(y_MN)
    run(
        "grouped_matmul",
        "iqqqqpqqpqqqpp",
        FORMATS[x_MK.dtype],
        weight_EKN.shape[0],
        *x_MK.shape,
        weight_EKN.shape[2],
        x_MK.data_ptr(),
        *x_MK.stride(),
        weight_EKN.data_ptr(),
        *weight_EKN.stride(),
        ends_E.data_ptr(),
        found_MN.data_ptr(),
    )
    if rows_M is not None:
        y_MN.index_copy_(0, rows_M, found_MN)


def dweight(
    x_MK: Tensor, dy_MN: Tensor, rows_M: Tensor | None, ends_E: Tensor, sums_EKN: Tensor, *, resumed: bool
) -> None:
    """sums[e] <- the chain of x^T dy over the rows of e, from what the sums hold or from +0."""
    x_MK, dy_MN = _together(x_MK, rows_M), _together(dy_MN, rows_M)
    run(
        "grouped_matmul_dweight",
        "iiiqqqqpqqpqqpp",
        FORMATS[x_MK.dtype],
        FORMATS[sums_EKN.dtype],
        int(resumed),
        ends_E.shape[0],
        *x_MK.shape,
        dy_MN.shape[1],
        x_MK.data_ptr(),
        *x_MK.stride(),
        dy_MN.data_ptr(),
        *dy_MN.stride(),
        ends_E.data_ptr(),
        sums_EKN.data_ptr(),
    )
