"""Tokens of some sequences end to end: the one layout in which the forward pass computes.

Padded rows are taken out on the way in and put back on the way out, so that padding cannot reach a bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from samebits.ops.attention.layout import Spread, boundaries

# A chain can stop and go on at multiples of this many rows on every backend, so that is what a sequence takes up.
ALIGNMENT = 16
# A place that has no target: no logprob and no gradient.
IGNORED = -100


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Sequences end to end. With a cache, the tokens come after those that it holds already."""

    ids: Tensor
    """int64 (T)."""
    positions: Tensor
    """int64 (T): each token's place in its own sequence."""
    lengths: tuple[int, ...]
    """Tokens of each sequence in this batch."""
    spread: Spread | None = None
    """`lengths` as attention reads them, on the device; None: made when they are asked for."""

    def spread_on(self, device: torch.device) -> Spread:
        """Where the sequences begin and how long they are, for all layers."""
        return boundaries("cu_seqlens", self.edges, len(self.ids), device) if self.spread is None else self.spread

    @property
    def edges(self) -> list[int]:
        """Where each sequence begins, and the end of the last."""
        return list(accumulate(self.lengths, initial=0))

    @classmethod
    def of(
        cls,
        sequences: Sequence[Sequence[int] | Tensor],
        *,
        starts: Sequence[int] | None = None,
        device: torch.device | str = "cpu",
    ) -> Batch:
        """Sequences one after another; `starts` are the positions of their first tokens, 0 unless said."""
        if not sequences or not all(len(each) for each in sequences):
            raise ValueError(f"batch: {len(sequences)} sequences, one of no tokens; allowed: at least one token each")
        starts = [0] * len(sequences) if starts is None else starts
        lengths = tuple(len(each) for each in sequences)
        ids = torch.cat([torch.as_tensor(each, dtype=torch.int64) for each in sequences])
        places = [torch.arange(start, start + length) for start, length in zip(starts, lengths, strict=True)]
        return cls(ids=ids.to(device), positions=torch.cat(places).to(device), lengths=lengths)

    @classmethod
    def of_padded(cls, ids_BS: Tensor, lengths: Sequence[int], side: str) -> Batch:
        """Rows of equal length of which `lengths` tokens are real, the others on one side."""
        if side not in ("left", "right"):
            raise ValueError(f"batch: padding is {side!r}; allowed: left, right")
        width = ids_BS.shape[1]
        rows = [
            row[width - length :] if side == "left" else row[:length]
            for row, length in zip(ids_BS, lengths, strict=True)
        ]
        return cls.of(rows, device=ids_BS.device)

    def to_padded(self, values: Tensor, side: str, fill: float = 0.0) -> Tensor:
        """One value a token (T, ...) as rows (B, longest, ...)."""
        longest = max(self.lengths)
        out = values.new_full((len(self.lengths), longest, *values.shape[1:]), fill)
        for row, (piece, length) in enumerate(zip(torch.split(values, list(self.lengths)), self.lengths, strict=True)):
            start = longest - length if side == "left" else 0
            out[row, start : start + length] = piece
        return out
