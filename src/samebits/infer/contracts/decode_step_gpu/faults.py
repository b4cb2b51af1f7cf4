"""Planted faults of the step for Hopper: another position, keys that are elsewhere, swapped weights."""

from __future__ import annotations

from torch import Tensor

from samebits.infer.contracts.decode_step_gpu import decoded
from samebits.infer.contracts.decode_step_gpu.model import cut, joined
from samebits.infer.decode_step import DecodeStep
from samebits.model.weights import prefix


def _another_position(step: DecodeStep) -> None:
    step._batch.positions.add_(1)


def _another_row(step: DecodeStep) -> None:
    """Of the same page: attention finds what was there before."""
    step._tables.written.bitwise_xor_(1)


def _another_page(step: DecodeStep) -> None:
    """The first one of every row is the next row's."""
    step._tables.pages[:, 0].copy_(step._tables.pages[:, 0].roll(1, 0))


def positions_are_ahead(ids: Tensor, held: Tensor, kept: Tensor, weights: Tensor) -> Tensor:
    """Queries and keys turn as if their token came one later."""
    return decoded(ids, held, kept, weights, change=_another_position)


def keys_are_stale(ids: Tensor, held: Tensor, kept: Tensor, weights: Tensor) -> Tensor:
    """The step's own key is written into another row, so that attention reads what was there before."""
    return decoded(ids, held, kept, weights, change=_another_row)


def pages_are_exchanged(ids: Tensor, held: Tensor, kept: Tensor, weights: Tensor) -> Tensor:
    """Attention reads the first keys of another row."""
    return decoded(ids, held, kept, weights, change=_another_page)


def gate_and_up_are_swapped(ids: Tensor, held: Tensor, kept: Tensor, weights: Tensor) -> Tensor:
    """They lie end to end in the other order."""
    parts = cut(weights, len(kept))
    for layer in range(len(kept)):
        gate, up = (f"{prefix(layer)}mlp.{name}_proj.weight" for name in ("gate", "up"))
        parts[gate], parts[up] = parts[up], parts[gate]
    return decoded(ids, held, kept, joined(parts))
