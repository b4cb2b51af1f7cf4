"""The model in float64 with torch's own functions; shares no operator with the model it judges."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention, silu

from samebits.model.contracts.small_model import SMALL, cut
from samebits.model.weights import EMBEDDING, FINAL_NORM, HEAD, prefix


def forward64(ids: Tensor, weights: Tensor) -> Tensor:
    """Logits of every token of every sequence."""
    named = cut(weights.double())
    return torch.stack([logits64(row, named) for row in ids])


def logits64(ids: Tensor, w: dict[str, Tensor]) -> Tensor:
    """Logits of every token of one sequence, from named weights."""
    x = w[EMBEDDING][ids]
    for layer in map(prefix, range((len(w) - 3) // 9)):
        normed = norm64(x, w[f"{layer}input_layernorm.weight"])
        query, key, value = (
            (normed @ w[f"{layer}self_attn.{name}_proj.weight"].T).reshape(len(x), -1, SMALL.head_dim).transpose(0, 1)
            for name in "qkv"
        )
        groups = SMALL.num_attention_heads // SMALL.num_key_value_heads
        key, value = (each.repeat_interleave(groups, 0) for each in (turned64(key), value))
        attended = scaled_dot_product_attention(turned64(query), key, value, is_causal=True)
        x = x + attended.transpose(0, 1).reshape(len(x), -1) @ w[f"{layer}self_attn.o_proj.weight"].T
        normed = norm64(x, w[f"{layer}post_attention_layernorm.weight"])
        gate, up, down = (w[f"{layer}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        x = x + (silu(normed @ gate.T) * (normed @ up.T)) @ down.T
    return norm64(x, w[FINAL_NORM]) @ w[HEAD].T


def norm64(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm as it is written."""
    return x * (x.square().mean(-1, keepdim=True) + SMALL.rms_norm_eps).rsqrt() * weight


def turned64(x_HTD: Tensor) -> Tensor:
    """Pairs (i, i + D/2) turned by position times theta^(-2i/D)."""
    half = x_HTD.shape[-1] // 2
    places = torch.arange(half, dtype=torch.float64, device=x_HTD.device)
    positions = torch.arange(x_HTD.shape[1], dtype=torch.float64, device=x_HTD.device)
    phase = positions[:, None] * SMALL.rope_theta ** (-places / half)
    first, second = x_HTD[..., :half], x_HTD[..., half:]
    cosine, sine = phase.cos(), phase.sin()
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)
