"""What every step of a stable run keeps to: a loss and norms that are numbers, the clipped one within its bound.

The run itself is compared with float64 at a size that float64 can afford, in `train_stable`."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.train.contracts.train_stable_350m import MAX_NORM


def limits64(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor) -> Tensor:
    """The most that loss and both norms may be, of each step."""
    largest = torch.finfo(torch.float64).max
    return torch.tensor([largest, largest, MAX_NORM], dtype=torch.float64).expand(int(steps), 3)
