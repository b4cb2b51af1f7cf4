"""What is traced and compiled of AdamW by Triton: one step of two tensors with master weights, over elements."""

from __future__ import annotations

import torch

from samebits.contracts.traced import Memory, Outputs, TracedKernels, by_rows, checked, over_elements, result
from samebits.ops.adamw import triton_kernel
from samebits.ops.adamw.check import launches
from samebits.ops.adamw.reference import Numbers

NAMES = ("param", "grad", "exp_avg", "exp_avg_sq", "master")


def _step(memory: Memory, dtype: torch.dtype, n: int) -> Outputs:
    numbers = Numbers.of(3, 0.01, 0.9, 0.95, 1e-8, 0.1)
    both = []
    for place in ("first", "second"):
        names = [f"{name} of the {place}" for name in NAMES]
        narrow = by_rows(memory, dtype, **dict.fromkeys(names[:2], (n,)))
        both.append((*narrow, *by_rows(memory, torch.float32, **dict.fromkeys(names[2:], (n,)))))
    params, grads, averages, squares, masters = (list(each) for each in zip(*both, strict=True))
    triton_kernel.update(params, grads, averages, squares, masters, numbers)
    written = {"param": params, "exp_avg": averages, "exp_avg_sq": squares, "master": masters}
    return {
        f"{name} {number}": result(tensor) for name, tensors in written.items() for number, tensor in enumerate(tensors)
    }


KERNELS = TracedKernels(
    cases=(over_elements("a step of two tensors with master weights", _step, 8, checked(launches)),),
    # Of what a launch is given only addresses: the numbers behind them are said by these.
    variants=("PARAM", "GRAD"),
)
