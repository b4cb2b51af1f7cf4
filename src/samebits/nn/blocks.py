"""Attention and SwiGLU as transformers' Llama and Qwen3 have them, with their state-dict names.

`joined` is several weights end to end because one input meets them all: of one row the parts are dense as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from samebits.nn.layers import Linear, RMSNorm
from samebits.nn.strategy import OURS, Operators
from samebits.ops.rope import RopeScaling


class RotaryEmbedding(nn.Module):
    """Rotary position embedding; has no weights.

    Args:
        theta: the base of the frequencies.
        scaling: how they are stretched for longer contexts, if they are.

    Shape:
        Input (..., T, H, D) and positions (..., T) or (T); output like the input.

    Example:
        >>> RotaryEmbedding()(torch.randn(5, 2, 16), torch.arange(5)).shape
        torch.Size([5, 2, 16])
    """

    compute: Operators = OURS

    def __init__(self, theta: float = 10000.0, scaling: RopeScaling | None = None) -> None:
        super().__init__()
        self.theta, self.scaling = theta, scaling

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Every pair of a head turned by its token's position times its frequency.

        Returns:
            A tensor of x's shape and dtype."""
        return self.compute.rope(x, positions, self.theta, scaling=self.scaling)


class SwiGLU(nn.Module):
    """down_proj(silu(gate_proj(x)) * up_proj(x)): transformers' `LlamaMLP`.

    Args:
        hidden_size: the width of the input and the output.
        intermediate_size: the width between.

    Shape:
        Input and output (..., hidden_size).

    Example:
        >>> sorted(SwiGLU(16, 32).state_dict())
        ['down_proj.weight', 'gate_proj.weight', 'up_proj.weight']
    """

    compute: Operators = OURS
    joined: Tensor | None = None

    def __init__(self, hidden_size: int, intermediate_size: int, **where: Any) -> None:
        super().__init__()
        self.gate_proj = Linear(hidden_size, intermediate_size, bias=False, **where)
        self.up_proj = Linear(hidden_size, intermediate_size, bias=False, **where)
        self.down_proj = Linear(intermediate_size, hidden_size, bias=False, **where)

    def forward(self, x: Tensor) -> Tensor:
        """The three products and what is between them.

        Returns:
            A tensor of x's shape and dtype."""
        gate, up = _products(self.compute, x, (self.gate_proj, self.up_proj), self.joined)
        down = self.down_proj
        return self.compute.inward(self.compute.swiglu(gate, up), down.weight, down.sums, "down_proj")


class Attention(nn.Module):
    """Self-attention of grouped heads with rotary positions: transformers' `LlamaAttention`, or Qwen3's with `qk_norm`.

    Args:
        hidden_size: the width of the input and the output.
        num_attention_heads: heads of the queries.
        num_key_value_heads: heads of keys and values; those of the queries unless said.
        head_dim: the width of a head; hidden_size / num_attention_heads unless said.
        qk_norm: whether queries and keys are normed head by head (Qwen3).
        rms_norm_eps: the eps of those norms.
        rope_theta, rope_scaling: of the rotary embedding.

    Shape:
        Input (B, S, hidden_size), or packed (T, hidden_size) with cu_seqlens; output likewise.

    Example:
        >>> layer = Attention(32, 4, 2)
        >>> x = torch.randn(1, 5, 32)
        >>> bool((layer(x)[:, :3] == layer(x[:, :3])).all())
        True
    """

    compute: Operators = OURS
    joined: Tensor | None = None

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        *,
        qk_norm: bool = False,
        rms_norm_eps: float = 1e-6,
        rope_theta: float = 10000.0,
        rope_scaling: RopeScaling | None = None,
        **where: Any,
    ) -> None:
        super().__init__()
        key_heads = num_attention_heads if num_key_value_heads is None else num_key_value_heads
        self.head_dim = hidden_size // num_attention_heads if head_dim is None else head_dim
        queries, keys = num_attention_heads * self.head_dim, key_heads * self.head_dim
        self.q_proj = Linear(hidden_size, queries, bias=False, **where)
        self.k_proj = Linear(hidden_size, keys, bias=False, **where)
        self.v_proj = Linear(hidden_size, keys, bias=False, **where)
        self.o_proj = Linear(queries, hidden_size, bias=False, **where)
        self.q_norm = RMSNorm(self.head_dim, rms_norm_eps, **where) if qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, rms_norm_eps, **where) if qk_norm else None
        self.rotary_emb = RotaryEmbedding(rope_theta, rope_scaling)

    def forward(self, x: Tensor, positions: Tensor | None = None, **layout: Any) -> Tensor:
        """Each token with the tokens before it in its sequence.

        Args:
            x: hidden states.
            positions: of each token in its sequence; 0, 1, ... of each row unless given.
            layout: what `samebits.ops.attention` is told of sequences: cu_seqlens, lengths and padding, cache.

        Returns:
            A tensor of x's shape and dtype."""
        rows, compute = x.shape[:-1], self.compute
        positions = torch.arange(rows[-1], device=x.device) if positions is None else positions
        products = _products(compute, x, (self.q_proj, self.k_proj, self.v_proj), self.joined)
        q, k, v = (each.reshape(*rows, -1, self.head_dim) for each in products)
        if self.q_norm is not None and self.k_norm is not None:
            norms = (self.q_norm, self.k_norm)
            weights, sums = [each.weight for each in norms], [each.sums for each in norms]
            q, k = compute.head_norms(q, k, weights, sums, self.q_norm.epsilon(x.dtype))
        if k.shape[-2]:
            q, k = self.rotary_emb(q, positions), self.rotary_emb(k, positions)
            attended = compute.attention(q, k, v, **layout)
        else:
            # No heads on this rank: nothing, in which a gradient still finds its way to every product.
            attended = q + k + v
        return compute.inward(attended.reshape(*rows, -1), self.o_proj.weight, self.o_proj.sums, "o_proj")


def _products(compute: Operators, x: Tensor, layers: Sequence[Linear], joined: Tensor | None) -> Sequence[Tensor]:
    """x with each of the weights that meet it. Of several rows, each part of a joined product would be a copy."""
    weights, sums = [each.weight for each in layers], [each.sums for each in layers]
    if joined is None or x.shape[:-1].numel() > 1:
        return compute.outward(x, weights, sums)
    return torch.split(compute.linear(x, joined, None), [len(each) for each in weights], dim=-1)
