"""Gradient norms on the CPU: hands a table of pointers to the C++ kernel beside this file. Tensors come contiguous."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from samebits.ops._cpu import FORMATS, run


def _table(tensors: Sequence[Tensor]) -> array[int]:
    """Size, format, address of every tensor."""
    table = array("q")
    for tensor in tensors:
        table.extend((tensor.numel(), FORMATS[tensor.dtype], tensor.data_ptr()))
    return table


def square_sum(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of all squares."""
    table, total = _table(tensors), torch.empty((), dtype=torch.float32)
    run("grad_square_sum", "qpp", len(tensors), table.buffer_info()[0], total.data_ptr())
    return total


def clip(grads: Sequence[Tensor], norm: Tensor, max_norm: float) -> None:
    """Every gradient times the scale, in place."""
    table = _table(grads)
    run("grad_norm_clip", "qpff", len(grads), table.buffer_info()[0], norm.item(), max_norm)
