"""The model in float64 with torch's own functions and autograd; shares no operator with the model it judges."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, scaled_dot_product_attention, silu

from samebits.model.contracts.small_model import SMALL, cut, joined
from samebits.model.weights import EMBEDDING, FINAL_NORM, HEAD, prefix


def gradients64(ids: Tensor, targets: Tensor, upstream: Tensor, weights: Tensor) -> Tensor:
    """The gradient of every weight, end to end."""
    with torch.enable_grad():
        leaves = {name: each.detach().clone().requires_grad_() for name, each in cut(weights.double()).items()}
        found = logprobs64(ids, targets, leaves)
        given = torch.autograd.grad(found, list(leaves.values()), upstream.double())
    return joined(dict(zip(leaves, given, strict=True)))


def through_residual64(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    """The norm of h = x + residual, and h itself beside it."""
    hidden = x + residual
    return torch.cat([_norm(hidden, weight), hidden], -1)


def logprobs64(ids: Tensor, targets: Tensor, w: dict[str, Tensor]) -> Tensor:
    """The logprob of every target."""
    x = w[EMBEDDING][ids]
    for layer in map(prefix, range((len(w) - 3) // 9)):
        normed = _norm(x, w[f"{layer}input_layernorm.weight"])
        query, key, value = (
            (normed @ w[f"{layer}self_attn.{name}_proj.weight"].T).reshape(len(x), -1, SMALL.head_dim).transpose(0, 1)
            for name in "qkv"
        )
        groups = SMALL.num_attention_heads // SMALL.num_key_value_heads
        key, value = (each.repeat_interleave(groups, 0) for each in (_turned(key), value))
        attended = scaled_dot_product_attention(_turned(query), key, value, is_causal=True)
        x = x + attended.transpose(0, 1).reshape(len(x), -1) @ w[f"{layer}self_attn.o_proj.weight"].T
        normed = _norm(x, w[f"{layer}post_attention_layernorm.weight"])
        gate, up, down = (w[f"{layer}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        x = x + (silu(normed @ gate.T) * (normed @ up.T)) @ down.T
    logits = _norm(x, w[FINAL_NORM]) @ w[HEAD].T
    return log_softmax(logits, -1).gather(-1, targets[:, None])[:, 0]


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + SMALL.rms_norm_eps).rsqrt() * weight


def _turned(x_HTD: Tensor) -> Tensor:
    """Pairs (i, i + D/2) turned by position times theta^(-2i/D)."""
    half = x_HTD.shape[-1] // 2
    places = torch.arange(half, dtype=torch.float64, device=x_HTD.device)
    positions = torch.arange(x_HTD.shape[1], dtype=torch.float64, device=x_HTD.device)
    phase = positions[:, None] * SMALL.rope_theta ** (-places / half)
    first, second = x_HTD[..., :half], x_HTD[..., half:]
    cosine, sine = phase.cos(), phase.sin()
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)
