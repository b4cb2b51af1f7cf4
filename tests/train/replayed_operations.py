"""CUDA graphs played on the CPU: what torch is asked to compute while one is captured is computed at every replay.

As on a GPU nothing is computed by the capture itself, and a replay reads and writes the memory that the capture saw."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from samebits.ops._triton import side_by_side

GIGABYTE = 2**30


def _tensors(found: Any) -> list[Tensor]:
    return [each for each in tree_leaves(found) if isinstance(each, Tensor)]


class Graph(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The operations of a capture, and what they returned. `graphs`: all that were made, the latest last."""

    graphs: list[Graph] = []  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.replays = 0
        self._before: list[tuple[Tensor, Tensor]] = []
        Graph.graphs.append(self)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = {id(each) for each in _tensors((args, kwargs))}
        if function._schema.is_mutable:
            self._before.extend((each, each.clone()) for each in _tensors((args, kwargs)))
        found = function(*args, **kwargs)
        made = [each for each in _tensors(found) if id(each) not in given]
        if not function.is_view:
            self.operations.append((function, args, kwargs, made))
        return found

    def undo(self) -> None:
        """What was written into comes to be as it was, and what was made is no number."""
        for tensor, before in reversed(self._before):
            tensor.detach().copy_(before)
        self._before.clear()

    def replay(self) -> None:
        self.replays += 1
        with torch.no_grad():
            for function, args, kwargs, made in self.operations:
                again = function(*args, **kwargs)
                for old, new in zip(made, _tensors(again) if made else [], strict=True):
                    old.detach().copy_(new)


@contextmanager
def _captured(graph: Graph, **_: object) -> Iterator[None]:
    try:
        with graph:
            yield
    finally:
        graph.undo()


@contextmanager
def cuda_graphs_on_the_cpu(free: int = 100 * GIGABYTE, graph: Any = _captured) -> Iterator[list[Graph]]:
    """Within the block `torch.cuda` captures and replays on the CPU; the graphs. `free`: memory that nobody has."""
    Graph.graphs = []
    empty = torch.empty
    reserved = iter(range(0, 10**6 * GIGABYTE, GIGABYTE))

    def pinned(*sizes: Any, pin_memory: bool = False, **options: Any) -> Tensor:
        return empty(*sizes, **options)

    with (
        patch.object(torch, "empty", pinned),
        patch.object(side_by_side, "multiprocessors", lambda _: 132),
        patch.multiple(
            torch.cuda,
            CUDAGraph=Graph,
            graph=graph,
            Stream=lambda *_: None,
            current_stream=lambda *_: SimpleNamespace(cuda_stream=0),
            device=lambda *_: nullcontext(),
            graph_pool_handle=object,
            empty_cache=lambda: None,
            memory_reserved=lambda *_: next(reserved),
            memory_allocated=lambda *_: next(reserved),
            mem_get_info=lambda *_: (free, 0),
        ),
    ):
        yield Graph.graphs
