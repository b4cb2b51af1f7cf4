"""LayerNorm on the CPU: hands pointers to the C++ kernel beside this file. Rows come contiguous."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops._cpu import FORMATS, pointer, run


def forward(x_MH: Tensor, weight_H: Tensor | None, bias_H: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(y, mean, rstd)."""
    rows, width = x_MH.shape
    y_MH, mean_M, rstd_M = torch.empty_like(x_MH), *(torch.empty(rows, dtype=torch.float32) for _ in range(2))
    given, written = map(pointer, (x_MH, weight_H, bias_H)), map(pointer, (y_MH, mean_M, rstd_M))
    run("layernorm_forward", "iqqpppfppp", FORMATS[x_MH.dtype], rows, width, *given, eps, *written)
    return y_MH, mean_M, rstd_M


def backward_input(dy_MH: Tensor, x_MH: Tensor, weight_H: Tensor | None, mean_M: Tensor, rstd_M: Tensor) -> Tensor:
    """The gradient of x."""
    rows, width = x_MH.shape
    dx_MH = torch.empty_like(x_MH)
    tensors = (dy_MH, x_MH, weight_H, mean_M, rstd_M, dx_MH)
    run("layernorm_backward_input", "iqqpppppp", FORMATS[dy_MH.dtype], rows, width, *map(pointer, tensors))
    return dx_MH


def backward_weight(dy_MH: Tensor, x_MH: Tensor, mean_M: Tensor, rstd_M: Tensor, accumulator_H: Tensor) -> None:
    """The chain over rows of dy * xhat, resumed from the accumulator, in place."""
    rows, width = x_MH.shape
    tensors = (dy_MH, x_MH, mean_M, rstd_M, accumulator_H)
    run("layernorm_backward_weight", "iqqppppp", FORMATS[dy_MH.dtype], rows, width, *map(pointer, tensors))


def backward_bias(dy_MH: Tensor, accumulator_H: Tensor) -> None:
    """The chain over rows of dy, resumed from the accumulator, in place."""
    rows, width = dy_MH.shape
    tensors = (dy_MH, accumulator_H)
    run("layernorm_backward_bias", "iqqpp", FORMATS[dy_MH.dtype], rows, width, *map(pointer, tensors))
