"""AdamW, said plainly: the definition that every backend is held to.

Numbers are made on the host in float64 and rounded once to float32:
  decay = 1 - lr weight_decay     step_size = lr / (1 - beta1^step)     root = 1 / sqrt(1 - beta2^step)
Then, element by element, float32 after every step, fused where fma is written:
  m = fma(m, beta1, (1 - beta1) * g)              v = fma(v, beta2, ((1 - beta2) * g) * g)
  d = fma(sqrt(v), root, eps)                     p = fma(-step_size, m / d, p * decay), rounded once to its dtype
With a master weight, p above is the master, and the parameter is the master rounded.
In float64 the same formulas are plain torch, exact enough to judge the others against."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from samebits.numerics.fma import fma32

# Infinities, and what comes of them, are data like any other.
_quietly = np.errstate(all="ignore")


class Numbers(NamedTuple):
    """What every kernel takes, in the order of its arguments. In float64 here; a kernel's float32 argument rounds."""

    decay: float
    minus_step_size: float
    root: float
    beta1: float
    rest1: float
    beta2: float
    rest2: float
    eps: float

    @staticmethod
    def of(step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float) -> Numbers:
        return Numbers(
            decay=1.0 - lr * weight_decay,
            minus_step_size=-(lr / (1.0 - power(beta1, step))),
            root=1.0 / math.sqrt(1.0 - power(beta2, step)),
            beta1=beta1,
            rest1=1.0 - beta1,
            beta2=beta2,
            rest2=1.0 - beta2,
            eps=eps,
        )

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(self)


def power(base: float, exponent: int) -> float:
    """base^exponent by squaring: the same bits on every machine, which the C library's pow does not promise."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def update(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    masters: Sequence[Tensor],
    numbers: Numbers,
) -> None:
    """One step of every tensor, in place."""
    for index, (param, grad, exp_avg, exp_avg_sq) in enumerate(zip(params, grads, exp_avgs, exp_avg_sqs, strict=True)):
        weight = masters[index] if masters else param
        step = _step64 if param.dtype == torch.float64 else _step32
        updated, first, second = step(weight, grad, exp_avg, exp_avg_sq, numbers)
        exp_avg.copy_(first)
        exp_avg_sq.copy_(second)
        weight.copy_(updated)
        if masters:
            param.copy_(updated)


@_quietly
def _step32(
    weight: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, numbers: Numbers
) -> tuple[Tensor, Tensor, Tensor]:
    decay, minus_step_size, root, beta1, rest1, beta2, rest2, eps = (np.float32(value) for value in numbers.values)
    p, g, m, v = (_float32(tensor) for tensor in (weight, grad, exp_avg, exp_avg_sq))
    m = fma32(m, np.broadcast_to(beta1, m.shape), rest1 * g)
    v = fma32(v, np.broadcast_to(beta2, v.shape), (rest2 * g) * g)
    d = fma32(np.sqrt(v), np.broadcast_to(root, v.shape), np.broadcast_to(eps, v.shape))
    p = fma32(np.broadcast_to(minus_step_size, p.shape), m / d, p * decay)
    return torch.from_numpy(p), torch.from_numpy(m), torch.from_numpy(v)


def _step64(
    weight: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, numbers: Numbers
) -> tuple[Tensor, Tensor, Tensor]:
    p, g, m, v = (tensor.detach().double() for tensor in (weight, grad, exp_avg, exp_avg_sq))
    m = m * numbers.beta1 + numbers.rest1 * g
    v = v * numbers.beta2 + numbers.rest2 * g * g
    d = v.sqrt() * numbers.root + numbers.eps
    return p * numbers.decay + numbers.minus_step_size * (m / d), m, v


# What the contract's subject is asked for: the third step, a beta2 that is not the default, a decay that shows.
SUBJECT = Numbers.of(3, lr=1e-2, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)


def side_by_side64(param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor) -> Tensor:
    """The third step with lr 0.01, beta2 0.95, decay 0.1: parameter, first and second moment beside each other."""
    return torch.cat(_step64(param, grad, exp_avg, exp_avg_sq, SUBJECT), -1)


def _float32(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy()
