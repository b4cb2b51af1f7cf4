"""Element by element on the CPU: one call of a kernel over contiguous tensors of one size, with fresh outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops._cpu import FORMATS, pointer, run


def run_elements(kernel: str, *inputs: Tensor, outputs: int = 1, numbers: tuple[int, ...] = ()) -> list[Tensor]:
    """kernel(format, numbers, elements, inputs, outputs) of the native library."""
    made = [torch.empty_like(inputs[0]) for _ in range(outputs)]
    addresses = [pointer(each) for each in (*inputs, *made)]
    signature = f"{'i' * (1 + len(numbers))}q{'p' * len(addresses)}"
    run(kernel, signature, FORMATS[inputs[0].dtype], *numbers, inputs[0].numel(), *addresses)
    return made
