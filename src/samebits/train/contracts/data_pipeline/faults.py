"""Planted faults of data: sequences drawn twice, an order by batch, one for all epochs; cuts that lose or share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from samebits.numerics.elementary.philox import philox_uint32
from samebits.train.contracts.data_pipeline import Sequences, order, targets
from samebits.train.data import cut_apart, cut_joined
from samebits.train.data_order import sequences_of


def _with_replacement(step: int, *, seed: int, sequences: int, batch: int) -> NDArray[np.int64]:
    return (philox_uint32(seed, step, batch) % np.uint32(sequences)).astype(np.int64)


def _by_batch(step: int, *, seed: int, sequences: int, batch: int) -> NDArray[np.int64]:
    return sequences_of(step, seed=seed + batch, sequences=sequences, batch=batch)


def _one_epoch(step: int, *, seed: int, sequences: int, batch: int) -> NDArray[np.int64]:
    return sequences_of((step - 1) % (sequences // batch) + 1, seed=seed, sequences=sequences, batch=batch)


def _last_piece_lost(lengths: NDArray[np.int64], longest: int) -> Sequences:
    starts, counts = cut_apart(lengths, longest)
    return starts[:-1], counts[:-1]


def _across_documents(lengths: NDArray[np.int64], longest: int) -> Sequences:
    return cut_joined(int(lengths.sum()), longest)


def drawn_with_replacement(plan: Tensor) -> Tensor:
    """A sequence may come twice in an epoch."""
    return order(plan, of=_with_replacement)


def order_by_batch(plan: Tensor) -> Tensor:
    """Another batch is another order."""
    return order(plan, of=_by_batch)


def one_order_for_all_epochs(plan: Tensor) -> Tensor:
    """The second epoch is the first again."""
    return order(plan, of=_one_epoch)


def last_piece_lost(lengths: Tensor, longest: Tensor) -> Tensor:
    """The last sequence is dropped."""
    return targets(lengths, longest, cut=_last_piece_lost)


def across_documents(lengths: Tensor, longest: Tensor) -> Tensor:
    """A sequence goes on into the next document."""
    return targets(lengths, longest, cut=_across_documents)


def documents_apart_where_joined(lengths: Tensor, longest: Tensor) -> Tensor:
    """A sequence ends where its document does."""
    return targets(lengths, longest)
