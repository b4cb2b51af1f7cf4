"""The same by counting, one target after another; any permutation will do for the order."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.train.contracts.data_pipeline import EPOCHS


def in_turn(plan: Tensor) -> Tensor:
    """Every epoch in the order of the data."""
    _, sequences, batch = plan.tolist()
    return torch.arange(sequences // batch * batch).expand(EPOCHS, -1)


def counted(lengths: Tensor, longest: Tensor) -> Tensor:
    """Documents apart: a document's first token is no target, and after `longest` targets a new sequence begins."""
    found, number, place = [], -1, 0
    for length in lengths.tolist():
        for within in range(1, length):
            number += (within - 1) % int(longest) == 0
            found.append((number, place + within))
        place += length
    return torch.tensor(found)


def counted_joined(lengths: Tensor, longest: Tensor) -> Tensor:
    """Documents end to end: as many whole sequences as there are targets for."""
    most = (int(lengths.sum()) - 1) // int(longest) * int(longest)
    return torch.tensor([(place // int(longest), place + 1) for place in range(most)])
