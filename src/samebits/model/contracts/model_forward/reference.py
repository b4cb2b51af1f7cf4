"""The model in float64 with torch's own functions; shares no operator with the model it judges.

And how far float32 may be from it: the same with every result off by its own bound."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from samebits.model.contracts.drawn_rounding import DRAWS, Drawn, Exact
from samebits.model.contracts.small_model import SMALL, cut
from samebits.model.weights import EMBEDDING, FINAL_NORM, HEAD, prefix

EXACT = Exact()
# Of one element: sine, cosine, two products and their sum; and of silu's exponential, quotient and products.
ROPE_ROUNDINGS, GATE_ROUNDINGS = 5, 6
# Of a weight of the softmax beside its score and its sum: exponential, quotient.
WEIGHT_ROUNDINGS = 4


def forward64(ids: Tensor, weights: Tensor, rounding: Exact = EXACT) -> Tensor:
    """Logits of every token of every sequence."""
    named = cut(weights.double())
    return torch.stack([logits64(row, named, rounding) for row in ids])


def allowed64(ids: Tensor, weights: Tensor, exact: Tensor) -> Tensor:
    """For each row of logits how far float32 may be: the largest effect of rounding that was drawn."""
    effects = [(forward64(ids, weights, Drawn(seed)) - exact).abs().amax(-1, keepdim=True) for seed in range(DRAWS)]
    return torch.stack(effects).amax(0)


def logits64(ids: Tensor, w: dict[str, Tensor], rounding: Exact = EXACT) -> Tensor:
    """Logits of every token of one sequence, from named weights."""
    x = w[EMBEDDING][ids]
    for layer in map(prefix, range((len(w) - 3) // 9)):
        normed = norm64(x, w[f"{layer}input_layernorm.weight"], rounding)
        query, key, value = (
            linear64(normed, w[f"{layer}self_attn.{name}_proj.weight"], rounding)
            .reshape(len(x), -1, SMALL.head_dim)
            .transpose(0, 1)
            for name in "qkv"
        )
        attended = attention64(turned64(query, rounding), turned64(key, rounding), value, rounding)
        x = added64(
            x,
            linear64(attended.transpose(0, 1).reshape(len(x), -1), w[f"{layer}self_attn.o_proj.weight"], rounding),
            rounding,
        )
        normed = norm64(x, w[f"{layer}post_attention_layernorm.weight"], rounding)
        gate, up = (linear64(normed, w[f"{layer}mlp.{name}_proj.weight"], rounding) for name in ("gate", "up"))
        gated = silu(gate) * up
        gated = rounding.elements(gated, gated.abs(), GATE_ROUNDINGS)
        x = added64(x, linear64(gated, w[f"{layer}mlp.down_proj.weight"], rounding), rounding)
    return linear64(norm64(x, w[FINAL_NORM], rounding), w[HEAD], rounding)


def linear64(x: Tensor, weight: Tensor, rounding: Exact = EXACT) -> Tensor:
    return rounding.sum(x @ weight.T, x.abs() @ weight.abs().T, x.shape[-1])


def added64(x: Tensor, branch: Tensor, rounding: Exact = EXACT) -> Tensor:
    total = x + branch
    return rounding.elements(total, total.abs(), 1)


def norm64(x: Tensor, weight: Tensor, rounding: Exact = EXACT) -> Tensor:
    """RMSNorm as it is written."""
    return rounding.norm(x * (x.square().mean(-1, keepdim=True) + SMALL.rms_norm_eps).rsqrt() * weight, x.shape[-1])


def attention64(query: Tensor, key: Tensor, value: Tensor, rounding: Exact = EXACT) -> Tensor:
    """Causal attention of heads (H, T, D), as it is written."""
    groups, (tokens, size) = len(query) // len(key), query.shape[1:]
    key, value = (each.repeat_interleave(groups, 0) for each in (key, value))
    scale = size**-0.5
    scores = query @ key.mT * scale
    scores = rounding.sum(scores, query.abs() @ key.abs().mT * scale, size)
    later = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).triu(1)
    weight = scores.masked_fill(later, -torch.inf).softmax(-1)
    weight = rounding.elements(weight, weight, WEIGHT_ROUNDINGS)
    return rounding.sum(weight @ value, weight @ value.abs(), 2 * tokens)


def turned64(x_HTD: Tensor, rounding: Exact = EXACT) -> Tensor:
    """Pairs (i, i + D/2) turned by position times theta^(-2i/D)."""
    half = x_HTD.shape[-1] // 2
    places = torch.arange(half, dtype=torch.float64, device=x_HTD.device)
    positions = torch.arange(x_HTD.shape[1], dtype=torch.float64, device=x_HTD.device)
    phase = positions[:, None] * SMALL.rope_theta ** (-places / half)
    first, second = x_HTD[..., :half], x_HTD[..., half:]
    cosine, sine = phase.cos(), phase.sin()
    turned = torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)
    # Not hypot, whose gradient at a pair of zeros is no number.
    length = torch.linalg.vector_norm(torch.stack([first, second]), dim=0).repeat(1, 1, 2)
    return rounding.elements(turned, length, ROPE_ROUNDINGS)
