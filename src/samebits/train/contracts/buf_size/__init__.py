"""Calls that write into, or read from, memory of a stated size: each must refuse a buffer that is one too small.

Knows no kernel's inside; what is called are the operators themselves, on copies of what may be written."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops.adamw import adamw_
from samebits.ops.attention import DenseCache
from samebits.ops.matmul import matmul_accumulate_
from samebits.ops.rmsnorm import rmsnorm_weight_gradient_
from samebits.ops.swiglu import swiglu


def product_into(a: Tensor, accumulator: Tensor, b: Tensor) -> Tensor:
    """accumulator (M, N) + a (M, K) b (K, N)."""
    return matmul_accumulate_(accumulator.clone(), a, b)


def norm_gradient_into(dy: Tensor, x: Tensor, statistic: Tensor, accumulator: Tensor) -> Tensor:
    """accumulator (H) + the sum over rows of dy x statistic."""
    return rmsnorm_weight_gradient_(accumulator.clone(), dy, x, statistic)


def gate_gradients(gate: Tensor, up: Tensor) -> Tensor:
    """(M, 2 I): the gradients of both inputs of a gate, ones flowing back."""
    with torch.enable_grad():
        given = [gate.detach().requires_grad_(), up.detach().requires_grad_()]
        y = swiglu(*given)
        return torch.cat(torch.autograd.grad(y, given, torch.ones_like(y)), -1)


def step_of(param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor) -> Tensor:
    """A first step of AdamW."""
    return adamw_(param.clone(), grad, exp_avg.clone(), exp_avg_sq.clone(), step=1, lr=1e-3)


def kept(keys: Tensor, storage: Tensor) -> Tensor:
    """The storage (capacity, D) after all keys (T, D) of a sequence were appended to an empty cache in it."""
    memory = storage.clone().reshape(1, len(storage), 1, storage.shape[1])
    cache = DenseCache(memory, memory.clone())
    new = keys.reshape(1, len(keys), 1, keys.shape[1])
    cache.append(new, new)
    return cache.k.reshape(storage.shape)
