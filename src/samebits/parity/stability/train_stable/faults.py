"""Planted faults of a training run: nothing is clipped, the clip is of another power, a NaN is written as 0."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops.grad_norm import grad_norm
from samebits.parity.stability.train_stable import MAX_NORM, training_log


def _not_clipped(parameters: list[Tensor]) -> Tensor:
    return grad_norm([parameter.grad for parameter in parameters if parameter.grad is not None])


def _clipped_one_by_one(parameters: list[Tensor]) -> Tensor:
    """As large as the root of the number of tensors, in all."""
    norm = _not_clipped(parameters)
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad *= (MAX_NORM / grad_norm([parameter.grad])).nan_to_num(0.0, 0.0)
    return norm


def without_clipping(hidden: Tensor, targets: Tensor, upstream: Tensor, weights: Tensor, rates: Tensor) -> Tensor:
    """Gradients reach the optimizer as large as they are."""
    return training_log(hidden, targets, upstream, weights, rates, clip=_not_clipped)


def clips_each_tensor(hidden: Tensor, targets: Tensor, upstream: Tensor, weights: Tensor, rates: Tensor) -> Tensor:
    """Every tensor is clipped by its own norm."""
    return training_log(hidden, targets, upstream, weights, rates, clip=_clipped_one_by_one)


def nan_is_logged_as_zero(hidden: Tensor, targets: Tensor, upstream: Tensor, weights: Tensor, rates: Tensor) -> Tensor:
    """The log shows 0 where a number is not finite."""
    return training_log(
        hidden, targets, upstream, weights, rates, log=lambda line: torch.nan_to_num(line, 0.0, 0.0, 0.0)
    )
