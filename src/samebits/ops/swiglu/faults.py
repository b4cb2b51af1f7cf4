"""Planted faults of SwiGLU: each breaks one promise, and the check of that promise must say so."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops.swiglu import swiglu


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
    """Breaks fused = unfused: up meets the gate before the sigmoid does. Right within rounding, other bits."""
    return (gate * up) * torch.sigmoid(gate)


def bias_of_one(gate: Tensor, up: Tensor) -> Tensor:
    """Breaks zeros: a bias that nobody gave is 1."""
    return swiglu(gate, up + 1.0)


def gate_gradient_without_up(gate: Tensor, up: Tensor) -> Tensor:
    """Breaks the gradient of the gate: up is missing in it."""
    silu = swiglu(gate, torch.ones_like(gate))
    return swiglu(gate.detach(), up) + (silu - silu.detach())
