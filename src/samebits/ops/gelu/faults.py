"""Planted faults of GELU: each breaks one promise, and the check of that promise must say so."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from samebits.ops.gelu import gelu
from samebits.ops.launching import forced

_calls = itertools.count()


def _spread(x: Tensor) -> Tensor:
    """x/2 + x/2 erf(x / sqrt 2): right within rounding, other bits."""
    return x * 0.5 + (x * 0.5) * torch.erf(x * 0.7071067811865476)


def split_by_batch(x: Tensor) -> Tensor:
    """Breaks batch and chunk: few rows take another kernel, with another formula."""
    return gelu(x) if x.shape[0] > 8 else _spread(x)


def other_formula_every_time(x: Tensor) -> Tensor:
    """Breaks repeat: as a kernel does that is tuned again and again while it runs."""
    return gelu(x) if next(_calls) % 2 else _spread(x)


def reads_its_neighbours(x: Tensor) -> Tensor:
    """Breaks padding: a NaN in one row reaches the others, as a missing mask lets it."""
    return gelu(x) + 0.0 * x.sum()


def tail_by_another_formula(x: Tensor) -> Tensor:
    """Breaks tile: where a share of the work ends, the last elements are done by other code."""
    plain = forced("threads") in (None, 1) and forced("launch") is None
    y = gelu(x)
    return y if plain else torch.cat([y[..., :-3], _spread(x[..., -3:])], -1)


def tanh_for_erf(x: Tensor) -> Tensor:
    """Breaks accuracy: the approximation where the error function is promised."""
    return gelu(x, "tanh")


def other_formula_on_cuda(x: Tensor) -> Tensor:
    """Breaks device: the accelerator has a formula of its own."""
    return _spread(x) if x.is_cuda else gelu(x)


def tanh_split_by_batch(x: Tensor) -> Tensor:
    """Breaks batch: few rows take torch's kernel."""
    return gelu(x, "tanh") if x.shape[0] > 8 else torch.nn.functional.gelu(x, approximate="tanh")


def tanh_tail_by_another_formula(x: Tensor) -> Tensor:
    """Breaks tile: where a share of the work ends, the last elements are done by other code."""
    plain = forced("threads") in (None, 1) and forced("launch") is None
    y = gelu(x, "tanh")
    return y if plain else torch.cat([y[..., :-3], _spread(x[..., -3:])], -1)


def erf_for_tanh(x: Tensor) -> Tensor:
    """Breaks accuracy: the error function where its approximation is promised."""
    return gelu(x)


def tanh_by_torch_on_cuda(x: Tensor) -> Tensor:
    """Breaks device: the accelerator has a formula of its own."""
    return torch.nn.functional.gelu(x, approximate="tanh") if x.is_cuda else gelu(x, "tanh")
