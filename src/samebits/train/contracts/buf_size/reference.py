"""The same in float64 with torch's own functions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu


def product_into64(a: Tensor, accumulator: Tensor, b: Tensor) -> Tensor:
    return accumulator.double() + a.double() @ b.double()


def norm_gradient_into64(dy: Tensor, x: Tensor, statistic: Tensor, accumulator: Tensor) -> Tensor:
    return accumulator.double() + (dy.double() * x.double() * statistic.double()[:, None]).sum(0)


def gate_gradients64(gate: Tensor, up: Tensor) -> Tensor:
    with torch.enable_grad():
        given = [each.double().requires_grad_() for each in (gate, up)]
        y = silu(given[0]) * given[1]
        return torch.cat(torch.autograd.grad(y, given, torch.ones_like(y)), -1)


def step_of64(param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor) -> Tensor:
    first, second = 0.9 * exp_avg.double() + 0.1 * grad.double(), 0.999 * exp_avg_sq.double()
    second = second + 0.001 * grad.double().square()
    return param.double() * (1 - 1e-5) - 1e-3 * (first / 0.1) / ((second / 0.001).sqrt() + 1e-8)


def kept64(keys: Tensor, storage: Tensor) -> Tensor:
    return torch.cat([keys, storage[len(keys) :]]).double()
