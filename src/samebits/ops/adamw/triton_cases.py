"""What is traced and compiled of AdamW by Triton: one step with master weights, over elements."""

from __future__ import annotations

import torch

from samebits.contracts.traced import Memory, Outputs, TracedKernels, by_rows, checked, over_elements, result
from samebits.ops.adamw import triton_kernel
from samebits.ops.adamw.check import launches
from samebits.ops.adamw.reference import Numbers


def _step(memory: Memory, dtype: torch.dtype, n: int) -> Outputs:
    param, grad = by_rows(memory, dtype, param=(n,), grad=(n,))
    average, squares, master = by_rows(memory, torch.float32, exp_avg=(n,), exp_avg_sq=(n,), master=(n,))
    numbers = Numbers.of(3, 0.01, 0.9, 0.95, 1e-8, 0.1)
    triton_kernel.update([param], [grad], [average], [squares], [master], numbers)
    written = {"param": param, "exp_avg": average, "exp_avg_sq": squares, "master": master}
    return {name: result(tensor) for name, tensor in written.items()}


KERNELS = TracedKernels(cases=(over_elements("a step with master weights", _step, 4, checked(launches)),))
