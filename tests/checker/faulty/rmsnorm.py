"""Planted: RMS norms that misbehave somewhere."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from samebits.ops import rmsnorm as _sound

EPS = 1e-6


def _by_sum(x: Tensor, weight: Tensor, *, pieces: int) -> Tensor:
    """The mean of squares in so many pieces, one element at a time in each."""
    squares = x.float().square()
    total = torch.zeros_like(squares[:, 0])
    for piece in squares.chunk(pieces, -1):
        part = torch.zeros_like(total)
        for column in piece.unbind(-1):
            part = part + column
        total = total + part
    return (x.float() * (total / x.shape[-1] + EPS).rsqrt()[:, None] * weight.float()).to(x.dtype)


def pieces_by_rows(x: Tensor, weight: Tensor) -> Tensor:
    return _by_sum(x, weight, pieces=3) if x.shape[0] < 4 else _by_sum(x, weight, pieces=1)


def pieces_by_alignment(x: Tensor, weight: Tensor) -> Tensor:
    return _by_sum(x, weight, pieces=2) if x.data_ptr() % 32 else _by_sum(x, weight, pieces=1)


def pieces_by_weight_stride(x: Tensor, weight: Tensor) -> Tensor:
    return _by_sum(x, weight, pieces=2) if weight.stride(0) != 1 else _by_sum(x, weight, pieces=1)


def zero_rows_are_nan(x: Tensor, weight: Tensor) -> Tensor:
    return (x.float() * x.float().square().mean(-1, keepdim=True).rsqrt() * weight.float()).to(x.dtype)


def mean_over_the_batch(x: Tensor, weight: Tensor) -> Tensor:
    return _sound(x, weight, EPS) + 0 * x.float().square().mean().to(x.dtype)


def loses_the_sign_of_zero(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    return _sound(x, weight, eps) + 0.0


def eps_by_rows(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    return _sound(x, weight, eps * (1 + 1e-3) if x.shape[0] > 200 else eps)


def rsqrt_by_rows(x: Tensor, weight: Tensor) -> Tensor:
    mean = x.double().square().mean(-1, keepdim=True).float() + EPS
    scale = mean.rsqrt() if x.shape[0] % 2 else 1.0 / mean.sqrt()
    return (x.float() * scale * weight.float()).to(x.dtype)


def stock(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    """Sums a row by torch, in an order that strides and threads decide."""
    return (x.float() * (x.float().square().sum(-1, keepdim=True) / x.shape[-1] + eps).rsqrt() * weight.float()).to(
        x.dtype
    )


def weight_in_half_for_training(x: Tensor, weight: Tensor) -> Tensor:
    taken = weight.half().to(weight.dtype) if weight.requires_grad else weight
    return _sound(x, taken, EPS)


def long_rows_keep_part(x: Tensor, weight: Tensor) -> Tensor:
    """Rows beyond 8192 elements are normalised by their first 8192."""
    scale = (x[:, :8192].double().square().mean(-1, keepdim=True) + EPS).rsqrt()
    return (x.double() * scale * weight.double()).to(x.dtype)


# Backward


class _Norm(torch.autograd.Function):
    """Sound in float64; `fault` says what goes wrong on the way back."""

    workspace: ClassVar[dict[tuple[int, ...], Tensor]] = {}

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, fault: str) -> Tensor:
        wide = x.double()
        scale = (_ordered_sum(wide.square(), -1) / x.shape[-1] + EPS).rsqrt()[:, None]
        normed = wide * scale
        if fault == "workspace":
            normed = _Norm.workspace.setdefault(tuple(x.shape), torch.empty_like(normed)).copy_(normed)
        ctx.kept, ctx.fault, ctx.weight = (normed, scale), fault, weight
        return (normed * weight.double()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        normed, scale = ctx.kept
        flowing = dy.double() * ctx.weight.double()
        mean = _ordered_sum(flowing * normed, -1)[:, None] / normed.shape[-1]
        dx = (scale * (flowing - normed * mean)).to(dy.dtype)
        terms = (dy.float() * normed.float()).float()
        if ctx.fault == "strides" and not dy.is_contiguous():
            terms = terms.flip(0)
        if ctx.fault == "overwrites":
            dy.copy_(dx)
        if ctx.fault == "once":
            normed.mul_(2)
        return dx, _ordered_sum(terms, 0).to(ctx.weight.dtype), None


def _ordered_sum(terms: Tensor, axis: int) -> Tensor:
    total = torch.zeros_like(terms.select(axis, 0))
    for term in terms.unbind(axis):
        total = total + term
    return total


def _normed(x: Tensor, weight: Tensor, fault: str) -> Tensor:
    y: Tensor = _Norm.apply(x, weight, fault)  # type: ignore[no-untyped-call]
    return y


def rows_backwards_for_a_strided_gradient(x: Tensor, weight: Tensor) -> Tensor:
    return _normed(x, weight, "strides")


def saved_in_a_workspace(x: Tensor, weight: Tensor) -> Tensor:
    """What the backward pass needs is overwritten by the next forward pass of this shape."""
    return _normed(x, weight, "workspace")


def writes_into_the_gradient_of_its_output(x: Tensor, weight: Tensor) -> Tensor:
    return _normed(x, weight, "overwrites")


def second_backward_of_what_is_left(x: Tensor, weight: Tensor) -> Tensor:
    """The first backward pass writes into what the forward pass kept."""
    return _normed(x, weight, "once")


def pieces_by_length_of_sequences(x: Tensor, weight: Tensor) -> Tensor:
    """Of sequences, long ones are summed in pieces."""
    pieces = 3 if x.ndim > 2 and x.shape[1] > 20 else 1
    return _by_sum(x.reshape(-1, x.shape[-1]), weight, pieces=pieces).reshape(x.shape)
