"""One backward pass through the model, and one through a residual: where gradients must arrive.

Knows no optimizer."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.model.contracts.small_model import joined, model_of, weight_gradients
from samebits.nn.strategy import Operators
from samebits.ops.rmsnorm import add_rmsnorm


def gradients(
    ids: Tensor, targets: Tensor, upstream: Tensor, weights: Tensor, *, operators: Operators | None = None
) -> Tensor:
    """The gradient of every weight, end to end in the order of `weights`."""
    return joined(weight_gradients(model_of(weights, operators), ids, targets, upstream))


def through_residual(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    """(rows, 2 width): the norm of h = x + residual, and h itself beside it."""
    return torch.cat(add_rmsnorm(x, residual, weight), -1)
