"""The gradients of 50 million weights in float64, by torch's own functions and autograd; none of our operators."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear, log_softmax, rms_norm, scaled_dot_product_attention, silu

from samebits.model.contracts.small_model import joined
from samebits.model.weights import EMBEDDING, FINAL_NORM, prefix
from samebits.train.contracts.gradflow_50m import CONFIG, cut


def gradients64(ids: Tensor, targets: Tensor, upstream: Tensor, weights: Tensor) -> Tensor:
    """The gradient of every weight, end to end."""
    with torch.enable_grad():
        leaves = {name: each.detach().clone().requires_grad_() for name, each in cut(weights.double()).items()}
        found = log_softmax(_logits(ids, leaves), -1).gather(-1, targets[:, None])[:, 0]
        given = torch.autograd.grad(found, list(leaves.values()), upstream.double())
    return joined(dict(zip(leaves, given, strict=True)))


def _logits(ids: Tensor, w: dict[str, Tensor]) -> Tensor:
    """Of every token of one sequence; the head is the embedding."""
    x = w[EMBEDDING][ids]
    for layer in map(prefix, range(CONFIG.num_hidden_layers)):
        normed = _norm(x, w[f"{layer}input_layernorm.weight"])
        heads = [
            linear(normed, w[f"{layer}self_attn.{name}_proj.weight"])
            .reshape(1, len(x), -1, CONFIG.head_dim)
            .transpose(1, 2)
            for name in "qkv"
        ]
        attended = scaled_dot_product_attention(
            _turned(heads[0]), _turned(heads[1]), heads[2], is_causal=True, enable_gqa=True
        )
        x = x + linear(attended[0].transpose(0, 1).reshape(len(x), -1), w[f"{layer}self_attn.o_proj.weight"])
        normed = _norm(x, w[f"{layer}post_attention_layernorm.weight"])
        gate, up = (linear(normed, w[f"{layer}mlp.{name}_proj.weight"]) for name in ("gate", "up"))
        x = x + linear(silu(gate) * up, w[f"{layer}mlp.down_proj.weight"])
    return linear(_norm(x, w[FINAL_NORM]), w[EMBEDDING])


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return rms_norm(x, (CONFIG.hidden_size,), weight, CONFIG.rms_norm_eps)


def _turned(x_1HTD: Tensor) -> Tensor:
    """Pairs (i, i + D/2) turned by position times theta^(-2i/D)."""
    half = CONFIG.head_dim // 2
    places, positions = (torch.arange(n, dtype=torch.float64, device=x_1HTD.device) for n in (half, x_1HTD.shape[2]))
    phase = positions[:, None] * CONFIG.rope_theta ** (-places / half)
    first, second = x_1HTD.chunk(2, -1)
    return torch.cat([first * phase.cos() - second * phase.sin(), second * phase.cos() + first * phase.sin()], -1)
