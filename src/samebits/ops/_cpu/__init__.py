"""What the CPU kernels of two or more rooms share: passing tensors to the native library, counted.

The counter lets a test say "one function of the library for all sizes, and it did run"."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from samebits import native
from samebits.ops.launching import forced

FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_launches: Counter[tuple[str, str | None]] = Counter()


def pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def run(kernel: str, signature: str, *arguments: int | float | None) -> None:
    """Call a kernel with plain numbers and pointers, on torch's threads unless launch numbers are forced."""
    threads, instruction_set = forced("threads"), forced("instruction_set")
    assert threads is None or isinstance(threads, int)
    assert instruction_set is None or isinstance(instruction_set, str)
    threads = torch.get_num_threads() if threads is None else threads
    _launches[kernel, instruction_set] += 1
    native.call(kernel, signature, *arguments, threads=threads, instruction_set=instruction_set)


def launches() -> Counter[tuple[str, str | None]]:
    """Calls so far in this process, of each kernel and instruction set (None: the widest there is)."""
    return _launches.copy()
