"""SwiGLU on the CPU: hands pointers to the C++ kernel beside this file. Tensors come contiguous."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops._cpu import FORMATS, pointer, run


def forward(gate: Tensor, up: Tensor) -> Tensor:
    """y = (gate * sigmoid(gate)) * up."""
    y = torch.empty_like(gate)
    run("swiglu_forward", "iqppp", FORMATS[gate.dtype], gate.numel(), *map(pointer, (gate, up, y)))
    return y


def backward(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of gate and of up."""
    dgate, dup = torch.empty_like(gate), torch.empty_like(up)
    tensors = (dy, gate, up, dgate, dup)
    run("swiglu_backward", "iqppppp", FORMATS[gate.dtype], gate.numel(), *map(pointer, tensors))
    return dgate, dup
