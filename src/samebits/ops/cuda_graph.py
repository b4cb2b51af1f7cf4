"""A function's kernels as one CUDA graph that is launched again: what `capture` is for the CPU.

The graph reads and writes the memory that the function read and wrote, so what differs from call to call must be in
tensors that are written in place. The same kernels run on the same sizes, hence the same bits. Knows no model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

Returned = TypeVar("Returned")


class CudaGraph(Generic[Returned]):
    """The kernels that a function launched, and what it returned: the same tensors after every `replay`."""

    def __init__(self, function: Callable[[], Returned], pool: Any = None) -> None:
        """Run the function once, so that its kernels are compiled and its constants made, then once more to keep it.

        `pool`: memory shared with other graphs, of which only one runs at a time."""
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(stream):
            function()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(self._graph, pool=pool):
            self.returned = function()
        self.replay()

    def replay(self) -> Returned:
        """What the function would return now, in the tensors that it returned the first time."""
        self._graph.replay()
        return self.returned
