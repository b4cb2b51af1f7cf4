"""RMSNorm on the CPU: hands pointers to the C++ kernel beside this file. Rows come contiguous."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops._cpu import FORMATS, pointer, run


def forward(x_MH: Tensor, weight_H: Tensor, eps: float, residual_MH: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """(y, rstd, hidden): hidden is x, or round(x + residual)."""
    rows, width = x_MH.shape
    y_MH, rstd_M = torch.empty_like(x_MH), torch.empty(rows, dtype=torch.float32)
    hidden_MH = x_MH if residual_MH is None else torch.empty_like(x_MH)
    written = None if residual_MH is None else hidden_MH
    tensors = (x_MH, weight_H, residual_MH)
    run(
        "rmsnorm_forward",
        "iqqpppfppp",
        FORMATS[x_MH.dtype],
        rows,
        width,
        *map(pointer, tensors),
        eps,
        *map(pointer, (y_MH, rstd_M, written)),
    )
    return y_MH, rstd_M, hidden_MH


def backward_input(
    dy_MH: Tensor, hidden_MH: Tensor, weight_H: Tensor, rstd_M: Tensor, dhidden_MH: Tensor | None
) -> Tensor:
    """The gradient of hidden, with what flows into hidden from elsewhere added before the rounding."""
    rows, width = hidden_MH.shape
    dx_MH = torch.empty_like(hidden_MH)
    tensors = (dy_MH, hidden_MH, weight_H, rstd_M, dhidden_MH, dx_MH)
    run("rmsnorm_backward_input", "iqqpppppp", FORMATS[dy_MH.dtype], rows, width, *map(pointer, tensors))
    return dx_MH


def backward_weight(dy_MH: Tensor, hidden_MH: Tensor, rstd_M: Tensor, accumulator_H: Tensor) -> None:
    """The chain over rows, resumed from the accumulator, in place."""
    rows, width = hidden_MH.shape
    tensors = (dy_MH, hidden_MH, rstd_M, accumulator_H)
    run("rmsnorm_backward_weight", "iqqpppp", FORMATS[dy_MH.dtype], rows, width, *map(pointer, tensors))
