"""What is traced and compiled of the gradient norm by Triton: sums of squares of tensors, and clipping."""

from __future__ import annotations

import torch

from samebits.contracts.traced import (
    Memory,
    Outputs,
    TracedKernels,
    by_rows,
    checked,
    one_row,
    over_cuts,
    over_elements,
    result,
    shared,
)
from samebits.ops.grad_norm import triton_kernel
from samebits.ops.grad_norm.check import launches


def _squares(memory: Memory, dtype: torch.dtype, sizes: tuple[int, ...]) -> Outputs:
    tensors = [shared(memory, dtype, **{f"x{number}": (size,)})[0] for number, size in enumerate(sizes)]
    return {"total": one_row(triton_kernel.square_sum(tensors))}


def _clipped(memory: Memory, dtype: torch.dtype, n: int) -> Outputs:
    (grad,) = by_rows(memory, dtype, grad=(n,))
    (norm,) = shared(memory, torch.float32, norm=())
    triton_kernel.clip([grad], norm, 1.0)
    return {"grad": result(grad)}


KERNELS = TracedKernels(
    cases=(
        over_cuts("the sum of squares of tensors of sizes", _squares, 1, checked(launches), ((300,),)),
        over_cuts("the sum of squares of tensors of sizes", _squares, 1, checked(launches), ((65576, 9),)),
        over_elements("clipping that takes place", _clipped, 1, checked(launches), branch=False),
    )
)
