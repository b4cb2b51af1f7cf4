"""GELU on the CPU: hands pointers to the C++ kernel beside this file. Tensors come contiguous."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops._cpu import FORMATS, pointer, run


def forward(x: Tensor, by_tanh: bool) -> Tensor:
    """y = (x * 0.5) * (1 + e), e the error function or tanh."""
    y = torch.empty_like(x)
    run("gelu_forward", "iiqpp", FORMATS[x.dtype], int(by_tanh), x.numel(), *map(pointer, (x, y)))
    return y


def backward(dy: Tensor, x: Tensor, by_tanh: bool) -> Tensor:
    """The gradient of x."""
    dx = torch.empty_like(x)
    run("gelu_backward", "iiqppp", FORMATS[x.dtype], int(by_tanh), x.numel(), *map(pointer, (dy, x, dx)))
    return dx
