"""Softmax on the CPU: hands pointers to the C++ kernel beside this file. Rows come contiguous."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops._cpu import FORMATS, pointer, run


def forward(x_MH: Tensor, dtype: torch.dtype, logarithm: bool) -> Tensor:
    """Softmax of every row, or its logarithm, in `dtype`."""
    y_MH = torch.empty_like(x_MH, dtype=dtype)
    run(
        "softmax_forward",
        "iiiqqpp",
        FORMATS[x_MH.dtype],
        FORMATS[dtype],
        logarithm,
        *x_MH.shape,
        *map(pointer, (x_MH, y_MH)),
    )
    return y_MH


def backward(dy_MH: Tensor, y_MH: Tensor, dtype: torch.dtype, logarithm: bool) -> Tensor:
    """The gradient of x in `dtype`, from the result as it was stored."""
    dx_MH = torch.empty_like(y_MH, dtype=dtype)
    run(
        "softmax_backward",
        "iiiqqppp",
        FORMATS[dtype],
        FORMATS[y_MH.dtype],
        logarithm,
        *y_MH.shape,
        *map(pointer, (dy_MH, y_MH, dx_MH)),
    )
    return dx_MH
