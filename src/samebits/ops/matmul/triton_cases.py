"""What is traced of the matrix product by Triton: rows of a batch against a weight with bias, for every tile."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.contracts.traced import Memory, Outputs, TracedKernels, by_rows, over_rows, result, shared
from samebits.ops.matmul import triton_kernel
from samebits.ops.matmul.launch_table import TABLE


def _product(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
    (a,) = by_rows(memory, dtype, a=(m, 256))
    b, bias = shared(memory, dtype, b=(256, 24), bias=(24,))
    return {"out": result(triton_kernel.gemm(a, b, bias_N=bias))}


def _launches(format: str) -> Sequence[object]:
    return [None, *TABLE[format]]


KERNELS = TracedKernels(cases=(over_rows("a b + bias, K 256, N 24", _product, 1, _launches),), variants=("RESUMED",))
