"""Planted faults of the embedding: each breaks one promise, and the check of that promise must say so."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops.embedding import embedding


def _backwards(ids: Tensor, weight: Tensor) -> Tensor:
    """The same rows, and a gradient whose chains run over the positions in descending order."""
    return embedding(ids.flip(0), weight).flip(0)


class _LastPositionWins(torch.autograd.Function):
    """A gradient that is written where it should be added, as a scatter does."""

    @staticmethod
    def forward(ctx, ids: Tensor, weight: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(ids, weight)
        return embedding(ids, weight).detach()

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[None, Tensor]:  # type: ignore[no-untyped-def]
        ids, weight = ctx.saved_tensors
        dweight = torch.zeros_like(weight)
        for position, token in enumerate(ids.tolist()):
            dweight[token] = dy[position]
        return None, dweight


def last_position_wins(ids: Tensor, weight: Tensor) -> Tensor:
    """Breaks accuracy: of the positions with one id only the last counts."""
    return _LastPositionWins.apply(ids, weight)  # type: ignore[no-any-return, no-untyped-call]


class _RoundsBetween(torch.autograd.Function):
    """A gradient that is rounded after every 16 positions, as accumulation in a narrow gradient does."""

    @staticmethod
    def forward(ctx, ids: Tensor, weight: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(ids, weight)
        return embedding(ids, weight).detach()

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[None, Tensor]:  # type: ignore[no-untyped-def]
        ids, weight = ctx.saved_tensors
        dweight = torch.zeros_like(weight)
        for start in range(0, ids.shape[0], 16):
            rows = slice(start, start + 16)
            dweight = dweight.index_add(0, ids[rows], dy[rows]).bfloat16().to(dweight.dtype)
        return None, dweight


def rounds_between_micro_batches(ids: Tensor, weight: Tensor) -> Tensor:
    """Breaks micro: the gradient is not the chain that can be resumed."""
    return _RoundsBetween.apply(ids, weight)  # type: ignore[no-any-return, no-untyped-call]


def zero_row(ids: Tensor, weight: Tensor) -> Tensor:
    """Breaks the copy: the first row of the table is taken for padding and read as zeros."""
    return torch.where((ids == 0)[..., None], torch.zeros_like(weight[:1]), embedding(ids, weight))


def negative_ids_wrap(ids: Tensor, weight: Tensor) -> Tensor:
    """Accepts bad input: -1 is taken for the last row, as an index counts from the end."""
    return embedding(torch.where(ids < 0, ids % max(1, weight.shape[0]), ids), weight)


def positions_descending(ids: Tensor, weight: Tensor) -> Tensor:
    """Breaks the chain of the gradient: the adds are in another order than the positions."""
    return _backwards(ids, weight)
