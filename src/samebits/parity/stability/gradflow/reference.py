"""The chain in float64 with torch's own functions and autograd; shares no operator with the chain it judges."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, scaled_dot_product_attention, silu

from samebits.parity.stability.small_chain import SIZES, cut, joined

EPSILON = 1e-6
THETA = 10000.0


def gradients64(hidden: Tensor, targets: Tensor, upstream: Tensor, weights: Tensor) -> Tensor:
    """The gradient of every weight, end to end."""
    with torch.enable_grad():
        leaves = {name: each.detach().clone().requires_grad_() for name, each in cut(weights.double()).items()}
        found = _logprobs(hidden.double(), targets, leaves)
        given = torch.autograd.grad(found, list(leaves.values()), upstream.double())
    return joined(dict(zip(leaves, given, strict=True)))


def logprobs64(hidden: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """The logprob of every target."""
    return _logprobs(hidden.double(), targets, cut(weights.double()))


def through_residual64(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    """The norm of h = x + residual, and h itself beside it."""
    hidden = x + residual
    return torch.cat([_norm(hidden, weight), hidden], -1)


def _logprobs(x: Tensor, targets: Tensor, w: dict[str, Tensor]) -> Tensor:
    for layer in range((len(w) - 2) // 9):
        normed = _norm(x, w[f"{layer}.before"])
        query, key, value = (
            (normed @ w[f"{layer}.{name}"].T).reshape(len(x), -1, SIZES.head).transpose(0, 1)
            for name in ("query", "key", "value")
        )
        groups = SIZES.heads // SIZES.key_heads
        key, value = (each.repeat_interleave(groups, 0) for each in (_turned(key), value))
        attended = scaled_dot_product_attention(_turned(query), key, value, is_causal=True)
        x = x + attended.transpose(0, 1).reshape(len(x), -1) @ w[f"{layer}.out"].T
        normed = _norm(x, w[f"{layer}.between"])
        x = x + (silu(normed @ w[f"{layer}.gate"].T) * (normed @ w[f"{layer}.up"].T)) @ w[f"{layer}.down"].T
    logits = _norm(x, w["final"]) @ w["head"].T
    return log_softmax(logits, -1).gather(-1, targets[:, None])[:, 0]


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * weight


def _turned(x_HTD: Tensor) -> Tensor:
    """Pairs (i, i + D/2) turned by position times theta^(-2i/D)."""
    half = x_HTD.shape[-1] // 2
    places = torch.arange(half, dtype=torch.float64, device=x_HTD.device)
    positions = torch.arange(x_HTD.shape[1], dtype=torch.float64, device=x_HTD.device)
    phase = positions[:, None] * THETA ** (-places / half)
    first, second = x_HTD[..., :half], x_HTD[..., half:]
    cosine, sine = phase.cos(), phase.sin()
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)
