"""What the CPU kernels of two or more rooms share: passing tensors to the native library."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits import native
from samebits.ops.launching import forced

FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def run(kernel: str, signature: str, *arguments: int | float | None) -> None:
    """Call a kernel with plain numbers and pointers, on torch's threads unless launch numbers are forced."""
    threads, instruction_set = forced("threads"), forced("instruction_set")
    assert threads is None or isinstance(threads, int)
    assert instruction_set is None or isinstance(instruction_set, str)
    threads = torch.get_num_threads() if threads is None else threads
    native.call(kernel, signature, *arguments, threads=threads, instruction_set=instruction_set)
