"""What is traced and compiled of SwiGLU by Triton: the output, and both gradients, over elements."""

from __future__ import annotations

import torch

from samebits.contracts.traced import Memory, Outputs, TracedKernels, by_rows, checked, over_elements, result
from samebits.ops.swiglu import triton_kernel
from samebits.ops.swiglu.check import launches


def _forward(memory: Memory, dtype: torch.dtype, n: int) -> Outputs:
    return {"y": result(triton_kernel.forward(*by_rows(memory, dtype, gate=(n,), up=(n,))))}


def _backward(memory: Memory, dtype: torch.dtype, n: int) -> Outputs:
    dgate, dup = triton_kernel.backward(*by_rows(memory, dtype, dy=(n,), gate=(n,), up=(n,)))
    return {"dgate": result(dgate), "dup": result(dup)}


KERNELS = TracedKernels(
    cases=(
        over_elements("swiglu", _forward, 1, checked(launches)),
        over_elements("its gradients", _backward, 2, checked(launches)),
    )
)
