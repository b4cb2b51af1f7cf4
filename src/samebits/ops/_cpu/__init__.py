"""What the CPU kernels of two or more operators share: passing tensors to the native library, counted and overheard.

`run` is the one way to a kernel. The counter lets a test say "one function of the library for all sizes, and it did
run"; a listener hears every call of its own thread, so that a pass can be captured."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from samebits import native
from samebits.native.launch_numbers import forced

FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
Listener = Callable[[str, str, tuple[Any, ...]], None]
"""Told of a kernel's name, its signature and its arguments."""
_launches: Counter[tuple[str, str | None]] = Counter()
_thread = threading.local()


def pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def run(kernel: str, signature: str, *arguments: Any) -> None:
    """Call a kernel with plain numbers, addresses and ctypes arrays, on torch's threads unless others are forced."""
    threads, instruction_set = launch_numbers()
    count({kernel: 1}, instruction_set)
    native.call(kernel, signature, *arguments, threads=threads, instruction_set=instruction_set)
    listener = getattr(_thread, "listener", None)
    if listener is not None:
        listener(kernel, signature, arguments)


def launch_numbers() -> tuple[int, str | None]:
    """Threads and instruction set of a call made now."""
    threads, instruction_set = forced("threads"), forced("instruction_set")
    assert threads is None or isinstance(threads, int)
    assert instruction_set is None or isinstance(instruction_set, str)
    return torch.get_num_threads() if threads is None else threads, instruction_set


@contextmanager
def overhearing(listener: Listener) -> Iterator[None]:
    """Within the block the listener is told of every kernel that this thread has run."""
    before = getattr(_thread, "listener", None)
    _thread.listener = listener
    try:
        yield
    finally:
        _thread.listener = before


def count(calls: dict[str, int], instruction_set: str | None) -> None:
    """Add to the calls of each kernel."""
    for kernel, times in calls.items():
        _launches[kernel, instruction_set] += times


def launches() -> Counter[tuple[str, str | None]]:
    """Calls so far in this process, of each kernel and instruction set (None: the widest there is)."""
    return _launches.copy()
