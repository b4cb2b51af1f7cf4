"""Planted faults of calls with buffers: each takes what fits and says nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.train.contracts.buf_size import gate_gradients, kept, norm_gradient_into, product_into, step_of


def _common(*tensors: Tensor) -> list[Tensor]:
    """All cut to what they have in common."""
    sizes = [min(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]
    return [tensor[tuple(slice(size) for size in sizes)].contiguous() for tensor in tensors]


def product_takes_what_fits(a: Tensor, accumulator: Tensor, b: Tensor) -> Tensor:
    """A result smaller than the product is filled as far as it goes."""
    rows, columns = min(len(a), len(accumulator)), min(accumulator.shape[1], b.shape[1])
    depth = min(a.shape[1], len(b))
    fitting = (a[:rows, :depth], accumulator[:rows, :columns], b[:depth, :columns])
    return product_into(*(each.contiguous() for each in fitting))


def norm_takes_what_fits(dy: Tensor, x: Tensor, statistic: Tensor, accumulator: Tensor) -> Tensor:
    """A gradient as wide as the model goes into memory that is narrower."""
    dy, x = _common(dy, x)
    rows, width = min(len(dy), len(statistic)), min(dy.shape[1], len(accumulator))
    fitting = (dy[:rows, :width], x[:rows, :width], statistic[:rows], accumulator[:width])
    return norm_gradient_into(*(each.contiguous() for each in fitting))


def gate_takes_what_fits(gate: Tensor, up: Tensor) -> Tensor:
    """The wider of two inputs is cut."""
    return gate_gradients(*_common(gate, up))


def step_copies_what_fits(param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor) -> Tensor:
    """Buffers of unequal sizes are copied into each other."""
    return step_of(*_common(param, grad, exp_avg, exp_avg_sq))


def cache_keeps_what_fits(keys: Tensor, storage: Tensor) -> Tensor:
    """A sequence longer than the memory made for it loses its end."""
    width = min(keys.shape[1], storage.shape[1])
    count = min(len(keys), len(storage))
    if not count or not width:
        return torch.zeros_like(storage)
    return kept(keys[:count, :width].contiguous(), storage[:, :width].contiguous())
