"""A step that only decodes, one token of every request: the model's own forward pass, captured once and replayed.

What differs from step to step (ids, positions, lengths, pages) is in tensors that stay, so that the calls of the first
step are those of every later one. On the CPU; the same tensors are what a CUDA graph would need. Knows no request."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from samebits.infer.pages import LayerCache, Tables, places
from samebits.model import Batch, Model
from samebits.nn.strategy import OURS
from samebits.ops.attention.layout import Spread
from samebits.ops.capture import Arena, Capture, capture


def can_capture(model: Model) -> bool:
    """Whether a pass is nothing but our kernels on the CPU of this process."""
    return model.device.type == "cpu" and model.operators == OURS and model.split is None


class DecodeStep:
    """The pass of `rows` tokens, each of a request of its own."""

    def __init__(self, model: Model, caches: Sequence[LayerCache], rows: int, pages: int, arena: Arena) -> None:
        """`pages`: the most that the table of a request can name. `arena`: shared by steps of every number of rows."""
        self._model, self._caches, self._arena = model, caches, arena
        ids, positions, written, lengths = torch.zeros(4, rows, dtype=torch.int64)
        self._batch = Batch(ids=ids, positions=positions, lengths=(1,) * rows)
        self._tables = Tables(
            held=[0] * rows,
            grown=[1] * rows,
            tables=[range(pages)] * rows,
            written=written,
            pages=torch.zeros(rows, pages, dtype=torch.int32),
            spread=Spread(start=torch.zeros_like(lengths), length=lengths, longest=pages * caches[0].page_size),
        )
        self._capture: Capture[Tensor] | None = None

    def hidden(self, ids: Sequence[int], held: Sequence[int], tables: Sequence[Sequence[int]]) -> Tensor:
        """(rows, hidden) after the last norm, until the next step. Keys are added in pages that tables name already."""
        self._batch.ids.copy_(torch.tensor(ids))
        self._batch.positions.copy_(torch.tensor(held))
        torch.add(self._batch.positions, 1, out=self._tables.spread.length)
        size = self._caches[0].page_size
        written = [places(table, key, key + 1, size)[0] for table, key in zip(tables, held, strict=True)]
        self._tables.written.copy_(torch.tensor(written))
        for row, table in zip(self._tables.pages, tables, strict=True):
            row[: len(table)] = torch.tensor(table, dtype=torch.int32)
        if self._capture is None:
            self._capture = capture(self._pass, self._arena)
            return self._capture.returned
        return self._capture.replay()

    def _pass(self) -> Tensor:
        for cache in self._caches:
            cache.at(self._tables)
        return self._model.hidden(self._batch, self._caches)
