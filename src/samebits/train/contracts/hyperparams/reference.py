"""AdamW in float64 straight from the table of configurations, and the magnitudes that meet in every sum."""

from __future__ import annotations

import torch
from torch import Tensor


def applied64(config: Tensor, param: Tensor, grads: Tensor) -> Tensor:
    """(rows, steps, 3, width): parameter, first and second moment after each step."""
    return _trajectory(config.double(), param.double(), grads.double(), signed=True)


def magnitudes64(config: Tensor, param: Tensor, grads: Tensor) -> Tensor:
    """The same sums of magnitudes: what their rounding errors are relative to."""
    return _trajectory(config.double(), param.double().abs(), grads.double(), signed=False)


def _trajectory(config: Tensor, param: Tensor, grads: Tensor, *, signed: bool) -> Tensor:
    beta1, beta2, eps, decay = (config[:, place, None] for place in range(4))
    first, second, seen = torch.zeros_like(param), torch.zeros_like(param), []
    for step in range(1, grads.shape[1] + 1):
        grad, lr = grads[:, step - 1], config[:, 3 + step, None]
        first = beta1 * first + (1 - beta1) * (grad if signed else grad.abs())
        second = beta2 * second + (1 - beta2) * grad.square()
        share = lr * first / (1 - beta1**step) / ((second / (1 - beta2**step)).sqrt() + eps)
        param = param * (1 - lr * decay) - share if signed else param + share
        seen.append(torch.stack([param, first, second], 1))
    return torch.stack(seen, 1)
