"""Cores for our kernels: during a pass on the CPU torch computes its few small operations on one thread.

A thread of torch's that has nothing to do waits for work by spinning, for milliseconds, on a core that the next kernel
needs. Speed only: how many threads compute decides no bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from samebits.native.launch_numbers import forced, launching


@contextmanager
def torch_at_rest(device: torch.device) -> Iterator[None]:
    """Within the block torch has one thread, and our kernels have as many as it had. Blocks may lie in each other."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1 or forced("threads") is not None:
        yield
        return
    torch.set_num_threads(1)
    try:
        with launching(threads=threads):
            yield
    finally:
        torch.set_num_threads(threads)
