"""Planted faults of a training run: nothing is clipped, every tensor is clipped by itself, a NaN is logged as 0."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops.grad_norm import grad_norm
from samebits.train.contracts.train_stable import training_log
from samebits.train.trainer import Parts


def _not_clipped(gradients: list[Tensor], norm: Tensor, max_norm: float) -> None:
    return None


def _clipped_one_by_one(gradients: list[Tensor], norm: Tensor, max_norm: float) -> None:
    """As large as the root of the number of tensors, in all."""
    for gradient in gradients:
        gradient *= (max_norm / grad_norm([gradient])).nan_to_num(0.0, 0.0)


def without_clipping(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor) -> Tensor:
    """Gradients reach the optimizer as large as they are."""
    return training_log(text, weights, rate, steps, parts=Parts(clip=_not_clipped))


def clips_each_tensor(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor) -> Tensor:
    """Every tensor is clipped by its own norm."""
    return training_log(text, weights, rate, steps, parts=Parts(clip=_clipped_one_by_one))


def nan_is_logged_as_zero(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor) -> Tensor:
    """The log shows 0 where a number is not finite."""
    return torch.nan_to_num(training_log(text, weights, rate, steps), 0.0, 0.0, 0.0)
