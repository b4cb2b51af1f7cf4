"""What a run without rounding, and without copies that nobody needs, would give."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.train.contracts.train_stable.reference import training_log64


def no_copies64(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor) -> Tensor:
    return torch.zeros(int(steps), 4, dtype=torch.float64)


def unchanged64(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor) -> Tensor:
    """Where a run begins: three times the same weights."""
    return weights.double().cpu().expand(3, -1)


def losses64(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor) -> Tensor:
    return training_log64(text, weights, rate, steps)[:, 0].cpu()


def device_asked64(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor, device: Tensor) -> Tensor:
    return device.double().cpu()
