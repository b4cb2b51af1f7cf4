"""The average of losses from the log alone, and what is timed of a run whose parts cover all of it."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.train.contracts.run_log import TWENTIETHS


def smoothed64(losses: Tensor, window: int) -> Tensor:
    """The exponential moving average from the first loss on: begun later it would be that one loss, which wanders."""
    found = [float(losses[0])]
    for loss in losses[1:].tolist():
        found.append(found[-1] + 2 / (window + 1) * (loss - found[-1]))
    return torch.tensor(found, dtype=torch.float64)


def covered64(text: Tensor, counts: Tensor, weights: Tensor, steps: Tensor) -> Tensor:
    """Every step is timed, and all of its time is a part's."""
    return torch.tensor([int(steps), TWENTIETHS])
