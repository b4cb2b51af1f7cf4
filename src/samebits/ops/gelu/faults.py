"""Planted faults of GELU: each breaks one promise, and the check of that promise must say so."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from samebits.ops.arguments import DTYPES
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


def share_is_a_half(x: Tensor) -> Tensor:
    """Breaks the floor and the far ends: the distribution's value at zero everywhere."""
    return x * 0.5


def share_turned_round(x: Tensor) -> Tensor:
    """Breaks growth: the share of what lies above x."""
    return (0.5 * x.float() * torch.erfc(x.float() * 0.7071067811865476)).to(x.dtype)


def error_function_of_the_magnitude(x: Tensor) -> Tensor:
    """Breaks the mirror: negative x takes the share of its magnitude."""
    return (0.5 * x.float() * (1 + torch.erf(x.float().abs() * 0.7071067811865476))).to(x.dtype)


def sigmoid_for_the_share(x: Tensor) -> Tensor:
    """Breaks accuracy: the quick approximation x sigmoid(1.702 x)."""
    return (x.float() * torch.sigmoid(1.702 * x.float())).to(x.dtype)


def narrow_error_function(x: Tensor) -> Tensor:
    """Breaks accuracy: the error function kept in eight bits of significand between two kernels."""
    return (0.5 * x.float() * (1 + torch.erf(x.float() * 0.7071067811865476).bfloat16().float())).to(x.dtype)


def tail_is_not_written(x: Tensor) -> Tensor:
    """Breaks accuracy: elements past the last whole block of 16 stay as they were allocated."""
    return gelu(x) * (torch.arange(x.shape[-1], device=x.device) < x.shape[-1] // 16 * 16)


class _SlopeIsAHalf(torch.autograd.Function):
    """A GELU whose gradient takes the share for a half."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        return gelu(x).detach()

    @staticmethod
    def backward(ctx, dy: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        return dy * 0.5


def slope_is_a_half(x: Tensor) -> Tensor:
    """Breaks the gradient: right at zero alone."""
    return _SlopeIsAHalf.apply(x)  # type: ignore[no-any-return, no-untyped-call]


def takes_anything(x: Tensor, approximate: str = "none") -> Tensor:
    """Breaks refusal: what does not fit is made to."""
    return gelu(x if x.dtype in DTYPES else x.float(), "none" if approximate == "none" else "tanh")


def _by_tanh(x: Tensor, cubic: float) -> Tensor:
    return (0.5 * x.float() * (1 + torch.tanh(0.7978845608 * (x.float() + cubic * x.float() ** 3)))).to(x.dtype)


def tanh_with_another_coefficient(x: Tensor) -> Tensor:
    """Breaks accuracy: 0.0547 for 0.044715."""
    return _by_tanh(x, 0.0547)


def tanh_with_the_cubic_turned_round(x: Tensor) -> Tensor:
    """Breaks growth: x - 0.044715 x^3 turns back."""
    return _by_tanh(x, -0.044715)
