"""What is traced and compiled of GELU by Triton: output and gradient over elements, by erf and by tanh."""

from __future__ import annotations

import torch

from samebits.contracts.traced import Call, Memory, Outputs, TracedKernels, by_rows, checked, over_elements, result
from samebits.ops.elementwise import element_launches
from samebits.ops.gelu import triton_kernel


def _both(by_tanh: bool) -> Call:
    def call(memory: Memory, dtype: torch.dtype, n: int) -> Outputs:
        dy, x = by_rows(memory, dtype, dy=(n,), x=(n,))
        return {"y": result(triton_kernel.forward(x, by_tanh)), "dx": result(triton_kernel.backward(dy, x, by_tanh))}

    return call


KERNELS = TracedKernels(
    cases=(
        over_elements("gelu and its gradient by the error function", _both(False), 2, checked(element_launches)),
        over_elements("by tanh", _both(True), 2, checked(element_launches)),
    ),
    variants=("BY_TANH",),
    # The power of two in the forward pass of bfloat16 numbers.
    approximations={"gelu_forward": frozenset(("ex2.approx.ftz.f32",))},
)
