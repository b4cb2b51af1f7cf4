"""What a run reads: the sequences of its updates in their order, and the targets of documents cut into sequences.

Knows neither files nor a tokenizer; documents come as lengths."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samebits.train.data import cut_apart, cut_joined
from samebits.train.data_order import sequences_of

EPOCHS = 2
Sequences = tuple[NDArray[np.int64], NDArray[np.int64]]


def order(plan: Tensor, *, of: Callable[..., NDArray[np.int64]] = sequences_of) -> Tensor:
    """(epochs, sequences read of an epoch), of a plan (seed, sequences, batch)."""
    seed, sequences, batch = plan.tolist()
    updates = sequences // batch
    read = [of(step, seed=seed, sequences=sequences, batch=batch) for step in range(1, EPOCHS * updates + 1)]
    return torch.from_numpy(np.concatenate(read)).reshape(EPOCHS, -1)


def targets(
    lengths: Tensor, longest: Tensor, *, cut: Callable[[NDArray[np.int64], int], Sequences] = cut_apart
) -> Tensor:
    """(targets, 2): the sequence of every target, and its place among all tokens; documents apart."""
    starts, counts = cut(lengths.numpy(), int(longest))
    pieces = [
        np.stack([np.full(count, number), np.arange(start + 1, start + count + 1)], 1)
        for number, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True))
    ]
    return torch.from_numpy(np.concatenate(pieces)).long()


def joined_targets(lengths: Tensor, longest: Tensor) -> Tensor:
    """The same with documents end to end."""
    return targets(lengths, longest, cut=lambda each, most: cut_joined(int(each.sum()), most))
