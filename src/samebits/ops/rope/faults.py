"""Planted faults of rotary position embedding: each breaks one promise, and the check of that promise must say so."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from samebits.ops.rope import LARGEST_POSITION, rope
from samebits.ops.rope.check import THETA, YARN


def _by_torch(x: Tensor, positions: Tensor, table: torch.dtype = torch.float32) -> Tensor:
    """x cos + (the other half) sin with torch's own sine and cosine: right within rounding, other bits."""
    half = x.shape[-1] // 2
    phase = positions.float()[:, None] * THETA ** (-torch.arange(half, device=x.device).float() / half)
    cosine, sine = (torch.cat([each(phase)] * 2, -1)[:, None].to(table).float() for each in (torch.cos, torch.sin))
    other = torch.cat([-x[..., half:], x[..., :half]], -1)
    return (x.float() * cosine + other.float() * sine).to(x.dtype)


def narrow_table(x: Tensor, positions: Tensor) -> Tensor:
    """Breaks accuracy: sine and cosine kept in eight bits of significand, as a table in the model's dtype is."""
    return _by_torch(x, positions, torch.bfloat16)


def forgets_the_factor(x: Tensor, positions: Tensor) -> Tensor:
    """Breaks accuracy: frequencies by yarn, but sine and cosine as they are."""
    return rope(x, positions, layout="interleaved", scaling=replace(YARN, attention_factor=1.0))


def sine_for_cosine(x: Tensor, positions: Tensor) -> Tensor:
    """Breaks every angle: sine and cosine change places."""
    half = x.shape[-1] // 2
    phase = _phase(x, positions)
    a, b = x[..., :half].float(), x[..., half:].float()
    return torch.cat([a * phase.sin() - b * phase.cos(), b * phase.sin() + a * phase.cos()], -1).to(x.dtype)


def one_sign_flipped(x: Tensor, positions: Tensor) -> Tensor:
    """Breaks the norm: both halves add."""
    half = x.shape[-1] // 2
    phase = _phase(x, positions)
    a, b = x[..., :half].float(), x[..., half:].float()
    return torch.cat([a * phase.cos() + b * phase.sin(), b * phase.cos() + a * phase.sin()], -1).to(x.dtype)


def _phase(x: Tensor, positions: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return positions.float()[:, None, None] * THETA ** (-torch.arange(half, device=x.device).float() / half)


def counts_from_one(x: Tensor, positions: Tensor) -> Tensor:
    """Breaks position 0: every position is one too large."""
    return rope(x, positions + 1)


def other_pairs(x: Tensor, positions: Tensor) -> Tensor:
    """Breaks accuracy: neighbours are paired, not halves."""
    return rope(x, positions, layout="interleaved")


def not_turned(x: Tensor, positions: Tensor) -> Tensor:
    """Breaks accuracy: the heads come back as they went in, which keeps norms and position 0."""
    return x * 1.0


def further_with_every_head(x: Tensor, positions: Tensor) -> Tensor:
    """Breaks the heads' likeness: head and position are mixed up in one index."""
    return torch.cat([rope(x[:, head : head + 1], positions + head) for head in range(x.shape[1])], 1)


class _FlowsStraightBack(torch.autograd.Function):
    """A rotation whose gradient is not turned back."""

    @staticmethod
    def forward(ctx, x: Tensor, positions: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        return rope(x, positions).detach()

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        return dy.clone(), None


def flows_straight_back(x: Tensor, positions: Tensor) -> Tensor:
    """Breaks the gradient: right at position 0 alone."""
    return _FlowsStraightBack.apply(x, positions)  # type: ignore[no-any-return, no-untyped-call]


def takes_anything(x: Tensor, positions: Tensor, theta: float = THETA, layout: str = "half") -> Tensor:
    """Breaks refusal: what does not fit is made to."""
    even = x[..., : x.shape[-1] // 2 * 2] if x.shape[-1] > 1 else torch.cat([x, x], -1)
    known = positions[: x.shape[0]].long().clamp(0, LARGEST_POSITION)
    return rope(even.float() if x.dtype == torch.float64 else even, known, max(theta, 2.0), layout="half")
