"""Planted faults of SwiGLU: each breaks one promise, and the check of that promise must say so."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from samebits.ops.launching import forced
from samebits.ops.swiglu import swiglu

_calls = itertools.count()


def _regrouped(gate: Tensor, up: Tensor) -> Tensor:
    """(gate * up) * sigmoid(gate): right within rounding, other bits."""
    return (gate * up) * torch.sigmoid(gate)


def split_by_batch(gate: Tensor, up: Tensor) -> Tensor:
    """Breaks batch and chunk: few rows take another kernel, which multiplies in another order."""
    return swiglu(gate, up) if gate.shape[0] > 8 else _regrouped(gate, up)


def other_order_every_time(gate: Tensor, up: Tensor) -> Tensor:
    """Breaks repeat: as a kernel does that is tuned again and again while it runs."""
    return swiglu(gate, up) if next(_calls) % 2 else _regrouped(gate, up)


def reads_its_neighbours(gate: Tensor, up: Tensor) -> Tensor:
    """Breaks padding: a NaN in one row reaches the others, as a missing mask lets it."""
    return swiglu(gate, up) + 0.0 * gate.sum()


def tail_by_another_formula(gate: Tensor, up: Tensor) -> Tensor:
    """Breaks tile: where a share of the work ends, the last elements are done by other code."""
    plain = forced("threads") in (None, 1) and forced("launch") is None
    y = swiglu(gate, up)
    return y if plain else torch.cat([y[..., :-3], _regrouped(gate[..., -3:], up[..., -3:])], -1)


def narrow_sigmoid(gate: Tensor, up: Tensor) -> Tensor:
    """Breaks accuracy: the sigmoid kept in eight bits of significand between two kernels."""
    return gate * torch.sigmoid(gate).bfloat16().to(gate.dtype) * up


def other_order_on_cuda(gate: Tensor, up: Tensor) -> Tensor:
    """Breaks device: the accelerator multiplies in another order."""
    return _regrouped(gate, up) if gate.is_cuda else swiglu(gate, up)
