"""What the CPU kernels of two or more rooms share: passing tensors to the native library."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from samebits import native
from samebits.ops.launching import forced

FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(0 if tensor is None else tensor.data_ptr())


def run(kernel: str, *arguments: object) -> None:
    """Call a kernel; plain integers go as 64 bits, tensors as pointers, formats come as ctypes values already."""
    threads, instruction_set = forced("threads"), forced("instruction_set")
    assert threads is None or isinstance(threads, int)
    assert instruction_set is None or isinstance(instruction_set, str)
    passed = [
        pointer(value) if value is None or isinstance(value, Tensor)
        else ctypes.c_int64(value) if isinstance(value, int)
        else ctypes.c_float(value) if isinstance(value, float)
        else value
        for value in arguments
    ]  # fmt: skip
    native.call(kernel, *passed, threads=threads or torch.get_num_threads(), instruction_set=instruction_set)


def format_of(tensor: Tensor) -> ctypes.c_int32:
    return ctypes.c_int32(FORMATS[tensor.dtype])
