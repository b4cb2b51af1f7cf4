"""A step that only decodes, one token of every request: the model's own forward pass, captured once and replayed.

What differs from step to step (ids, positions, pages, how tokens are drawn) is in tensors that stay, so that the calls
of the first step are those of every later one: a list of calls on the CPU, a CUDA graph on a GPU. Knows no request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

import torch
from torch import Tensor

from samebits.infer.drawing import Choices, tokens_and_logprobs
from samebits.infer.pages import LayerCache, Tables, places
from samebits.model import Batch, Model
from samebits.nn.strategy import OURS
from samebits.ops.attention.forms import SPLIT_KEYS
from samebits.ops.attention.layout import Spread
from samebits.ops.capture import Arena, capture
from samebits.ops.cuda_graph import CudaGraph


class Decoded(NamedTuple):
    """What a step gives of each row."""

    hidden: Tensor
    """After the last norm."""
    logits: Tensor
    tokens: Tensor
    """Drawn from them; -1 where none can be."""
    logprobs: Tensor


class Captured(Protocol):
    """A pass that was made, and can be made again on what its tensors hold by then."""

    returned: Decoded

    def replay(self) -> Decoded: ...


# Keys: one split of attention.
LEAST_CAPACITY: Final = SPLIT_KEYS

Capturing = Callable[[Callable[[], Decoded]], Captured]


def can_capture(model: Model) -> bool:
    """Whether a pass is nothing but our kernels, in this process."""
    return model.device.type in ("cpu", "cuda") and model.operators == OURS and model.split is None


def capturing(device: torch.device) -> Capturing:
    """How passes are captured there; all of them share the memory of what lives for a pass only."""
    if device.type == "cuda":
        return partial(CudaGraph, pool=torch.cuda.graph_pool_handle())
    return partial(capture, arena=Arena())


def captured_rows(requests: int, device: torch.device) -> int:
    """Rows of the step that serves so many requests. A graph costs a pass to make, and a few rows more cost a GPU
    nothing: it has steps of 1, 2, 4, 8, 16, ... rows."""
    if device.type != "cuda":
        return requests
    return 1 << (requests - 1).bit_length() if requests <= 8 else -(-requests // 8) * 8


def captured_keys(most: int, limit: int) -> int:
    """Keys that a captured step can hold, where no request has more than `most`, and none may have over `limit`.

    Attention is launched for all splits of the capacity, so few keys should not get the capacity of many: it
    is doubled as requests grow. Decides no bit."""
    capacity = LEAST_CAPACITY
    while capacity < most:
        capacity *= 2
    return min(capacity, limit)


class DecodeStep:
    """The pass of `rows` tokens, each of a request of its own."""

    def __init__(self, model: Model, caches: Sequence[LayerCache], rows: int, pages: int, capturing: Capturing) -> None:
        """`pages`: the most that the table of a request can name."""
        self._model, self._caches, self._capturing = model, caches, capturing
        device, self._size = model.device, caches[0].page_size
        # Ids, positions, the rows of the cache that are written, and how tokens are drawn: one copy each a step.
        pinned = device.type == "cuda"
        self._given = torch.zeros(7, rows, dtype=torch.int64, pin_memory=pinned), torch.ones(2, rows, pin_memory=pinned)
        self._inputs = tuple(each if device.type == "cpu" else each.to(device) for each in self._given)
        ids, positions, written = self._inputs[0][:3]
        self._choices = Choices(self._inputs[0][3:], self._inputs[1])
        starts, lengths = torch.arange(rows, device=device), torch.zeros(rows, dtype=torch.int64, device=device)
        each_alone = Spread(start=starts, length=torch.ones_like(starts), longest=1)
        self._batch = Batch(ids=ids, positions=positions, lengths=(1,) * rows, spread=each_alone)
        self._tables = Tables(
            held=[0] * rows,
            grown=[1] * rows,
            tables=[range(pages)] * rows,
            written=written,
            pages=torch.zeros(rows, pages, dtype=torch.int32, device=device),
            spread=Spread(start=torch.zeros_like(lengths), length=lengths, longest=pages * self._size),
        )
        self._named: list[list[int]] = [[] for _ in range(rows)]
        self._captured: Captured | None = None

    def run(
        self, ids: Sequence[int], held: Sequence[int], tables: Sequence[Sequence[int]], choices: Choices
    ) -> Decoded:
        """Of one token each, in tensors of the next step too. Keys are added in pages that tables name already."""
        count, rows, capacity = len(ids), self._batch.ids.shape[0], self._tables.pages.shape[1] * self._size
        if max(held) >= capacity:
            raise ValueError(f"decode step: a request has {max(held) + 1} keys; allowed: up to {capacity}")
        # A row too many is the first request once more: it writes what is written there anyway.
        sources = [*range(count), *[0] * (rows - count)]
        written = [places(table, key, key + 1, self._size)[0] for table, key in zip(tables, held, strict=True)]
        whole = torch.cat((torch.tensor((ids, held, written)), choices.whole))
        for given, taken, values in zip(self._given, self._inputs, (whole, choices.parts), strict=True):
            given.copy_(values[:, sources])
            if taken is not given:
                # Done before `given` is written again: nobody makes a step before the tokens of the last were read.
                taken.copy_(given, non_blocking=True)
        self._name_pages([tables[source] for source in sources])
        if self._captured is None:
            self._captured = self._capturing(self._pass)
            decoded = self._captured.returned
        else:
            decoded = self._captured.replay()
        return Decoded(*(each[:count] for each in decoded))

    def _name_pages(self, tables: Sequence[Sequence[int]]) -> None:
        """Tell the table of every request that has another one than in the step before."""
        for row, (table, known) in enumerate(zip(tables, self._named, strict=True)):
            if table != known:
                # Of pages that are not used yet there may be more than the capacity.
                named = table[: self._tables.pages.shape[1]]
                self._tables.pages[row, : len(named)] = torch.tensor(named, dtype=torch.int32)
                self._named[row] = list(table)

    def _pass(self) -> Decoded:
        torch.add(self._batch.positions, 1, out=self._tables.spread.length)
        for cache in self._caches:
            cache.at(self._tables)
        hidden = self._hidden()
        logits = self._logits(hidden)
        return Decoded(hidden, logits, *tokens_and_logprobs(self._model.operators, logits, self._choices))

    def _hidden(self) -> Tensor:
        return self._model.hidden(self._batch, self._caches)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden)
