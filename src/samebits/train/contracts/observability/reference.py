"""What a log must say by counting alone: steps, breaches, the tokens of each update; and that nothing is printed."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.train.data_order import sequences_of


def tokens64(text: Tensor, counts: Tensor, steps: Tensor) -> Tensor:
    """(steps): the targets of the sequences of each update."""
    found = []
    for step in range(1, int(steps) + 1):
        places = sequences_of(step, seed=42, sequences=len(text), batch=2).tolist()
        found.append(sum(int(counts[place]) for place in places))
    return torch.tensor(found, dtype=torch.float64)


def lost_run64(text: Tensor, counts: Tensor, steps: Tensor, at: Tensor) -> Tensor:
    """The steps before it, one breach, stopped."""
    return torch.tensor([int(at) - 1, 1, 1])


def printed64(text: Tensor, counts: Tensor, steps: Tensor) -> Tensor:
    """Nothing, by nobody."""
    return torch.tensor([0, 0])
