"""Planted faults of GELU: each breaks one promise, and the check of that promise must say so."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops.arguments import DTYPES
from samebits.ops.gelu import gelu


def tanh_for_erf(x: Tensor) -> Tensor:
    """Breaks accuracy: the approximation where the error function is promised."""
    return gelu(x, "tanh")


def erf_for_tanh(x: Tensor) -> Tensor:
    """Breaks accuracy: the error function where its approximation is promised."""
    return gelu(x)


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
