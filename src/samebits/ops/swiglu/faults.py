"""Planted faults of SwiGLU: each breaks one promise, and the check of that promise must say so."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from samebits.ops.arguments import DTYPES
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
