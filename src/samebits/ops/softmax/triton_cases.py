"""What is traced and compiled of softmax by Triton: both functions and their gradients, a row of 600 at a time."""

from __future__ import annotations

from typing import Final

import torch

from samebits.contracts.traced import Call, Memory, Outputs, TracedKernels, by_rows, checked, over_rows, result
from samebits.ops.softmax import triton_kernel
from samebits.ops.softmax.check import launches

# Three blocks of lanes, the last of them ragged.
WIDTH: Final = 600


def _forward(logarithm: bool) -> Call:
    def call(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
        (x,) = by_rows(memory, dtype, x=(m, WIDTH))
        return {"y": result(triton_kernel.forward(x, dtype, logarithm))}

    return call


def _backward(logarithm: bool) -> Call:
    def call(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
        dy, y = by_rows(memory, dtype, dy=(m, WIDTH), y=(m, WIDTH))
        return {"dx": result(triton_kernel.backward(dy, y, dtype, logarithm))}

    return call


KERNELS = TracedKernels(
    cases=(
        over_rows("softmax of 600", _forward(False), 1, checked(launches)),
        over_rows("log_softmax of 600", _forward(True), 1, checked(launches)),
        over_rows("the gradient of softmax", _backward(False), 1, checked(launches)),
        over_rows("the gradient of log_softmax", _backward(True), 1, checked(launches)),
    ),
    variants=("LOGARITHM",),
)
