"""The matrix product as its chain leaves it: float32 sums of any storage dtype, for operators that round later or
never.

Knows no operator but `matmul`, whose kernels these are."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops.registering import call


def unrounded(a_MK: Tensor, b_KN: Tensor, backend: str) -> Tensor:
    """a b in float32, one chain over K an output from +0; float64 stays itself."""
    if a_MK.dtype in (torch.float32, torch.float64):
        whole: Tensor = call("gemm", a_MK, b_KN, None, backend)
        return whole
    shape = (a_MK.shape[0], b_KN.shape[1])
    if backend == "triton" and 0 not in (*shape, a_MK.shape[1]):
        from samebits.ops._triton.device import require_cuda

        require_cuda("matmul", a_MK.device)
        from samebits.ops.matmul import triton_kernel

        stored: Tensor = triton_kernel.gemm(a_MK, b_KN, out_dtype=torch.float32)
        return stored
    sum_MN = a_MK.new_zeros(shape, dtype=torch.float32)
    torch.ops.samebits.gemm_accumulate_(sum_MN, a_MK, b_KN, backend)
    return sum_MN
