"""Planted faults of SwiGLU: each breaks one promise, and the check of that promise must say so."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops.arguments import DTYPES
from samebits.ops.swiglu import swiglu


def _regrouped(gate: Tensor, up: Tensor) -> Tensor:
    """(gate * up) * sigmoid(gate): right within rounding, other bits."""
    return (gate * up) * torch.sigmoid(gate)


def narrow_sigmoid(gate: Tensor, up: Tensor) -> Tensor:
    """Breaks accuracy: the sigmoid kept in eight bits of significand between two kernels."""
    return gate * torch.sigmoid(gate).bfloat16().to(gate.dtype) * up


def sigmoid_is_a_half(gate: Tensor, up: Tensor) -> Tensor:
    """Breaks the floor and the far ends: the sigmoid is its value at zero."""
    return (gate.float() * 0.5 * up.float()).to(gate.dtype)


def sigmoid_turned_round(gate: Tensor, up: Tensor) -> Tensor:
    """Breaks growth: sigmoid(-x), which falls."""
    return (gate.float() * torch.sigmoid(-gate.float()) * up.float()).to(gate.dtype)


def sign_forgotten(gate: Tensor, up: Tensor) -> Tensor:
    """Breaks the mirror: the sigmoid by exp(-|x|), and nothing turned round for negative x."""
    return (gate.float() * torch.sigmoid(gate.float().abs()) * up.float()).to(gate.dtype)


def rectified_gate(gate: Tensor, up: Tensor) -> Tensor:
    """Breaks accuracy: the larger of x and 0 for x sigmoid(x)."""
    return gate.clamp(min=0) * up


def multiplied_in_another_order(gate: Tensor, up: Tensor) -> Tensor:
    """Breaks fused = unfused: up meets the gate before the sigmoid does."""
    return _regrouped(gate, up)


def bias_of_one(gate: Tensor, up: Tensor) -> Tensor:
    """Breaks zeros: a bias that nobody gave is 1."""
    return swiglu(gate, up + 1.0)


def overwrites_up(gate: Tensor, up: Tensor) -> Tensor:
    """Breaks the inputs: the result is written where up lies."""
    return up.copy_(swiglu(gate, up))


def tail_is_not_written(gate: Tensor, up: Tensor) -> Tensor:
    """Breaks accuracy: elements past the last whole block of 16 stay as they were allocated."""
    written = torch.arange(gate.shape[-1], device=gate.device) < gate.shape[-1] // 16 * 16
    return swiglu(gate, up) * written


class _GateGradientWithoutUp(torch.autograd.Function):
    """A SwiGLU whose gradient of the gate forgets one factor."""

    @staticmethod
    def forward(ctx, gate: Tensor, up: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(gate)
        return swiglu(gate, up).detach()

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
        (gate,) = ctx.saved_tensors
        s = torch.sigmoid(gate.float())
        slope = s * (1 + gate.float() * (1 - s))
        return (dy.float() * slope).to(gate.dtype), (dy.float() * gate.float() * s).to(gate.dtype)


def gate_gradient_without_up(gate: Tensor, up: Tensor) -> Tensor:
    """Breaks the gradient of the gate: up is missing in it."""
    return _GateGradientWithoutUp.apply(gate, up)  # type: ignore[no-any-return, no-untyped-call]


def takes_anything(gate: Tensor, up: Tensor) -> Tensor:
    """Breaks refusal: what does not fit is made to."""
    narrow = gate.dtype if gate.dtype in DTYPES else torch.float32
    return swiglu(gate.to(narrow), up[: gate.shape[0]].to(narrow))
