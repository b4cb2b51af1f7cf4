"""One backward pass through the chain of operators, and one through a residual: where gradients must arrive.

Knows no optimizer."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.nn.strategy import Operators
from samebits.ops.rmsnorm import add_rmsnorm
from samebits.parity.stability.small_chain import chain_of, cut, joined, weight_gradients


def gradients(
    hidden: Tensor, targets: Tensor, upstream: Tensor, weights: Tensor, *, operators: Operators | None = None
) -> Tensor:
    """The gradient of every weight, end to end in the order of `weights`."""
    chain = chain_of(cut(weights), operators)
    return joined(weight_gradients(chain, hidden, targets, upstream)[1])


def through_residual(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    """(rows, 2 width): the norm of h = x + residual, and h itself beside it."""
    return torch.cat(add_rmsnorm(x, residual, weight), -1)
