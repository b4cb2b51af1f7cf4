"""The log of a run without rounding: there are no streams in it."""

from __future__ import annotations

from torch import Tensor

from samebits.train.contracts.train_stable.reference import training_log64


def late_log64(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor, cycles: Tensor) -> Tensor:
    return training_log64(text, weights, rate, steps)[:, :3].cpu()
