"""The forward pass, once: embedding, layers of attention and SwiGLU with an RMSNorm before each, a last norm.

Training, scoring, prefill in chunks and decoding are this function; the engine's decode step is captured from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from samebits.nn.blocks import Attention, SwiGLU
from samebits.nn.layers import Embedding, RMSNorm
from samebits.nn.strategy import OURS, Operators
from samebits.ops.attention.cache import Cache


class DecoderLayer(nn.Module):
    """The modules of a layer, by transformers' names; `Decoder` runs them."""

    def __init__(self, attention: Attention, mlp: SwiGLU, hidden_size: int, eps: float, **where: Any) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(hidden_size, eps, **where)
        self.self_attn = attention
        self.post_attention_layernorm = RMSNorm(hidden_size, eps, **where)
        self.mlp = mlp


class Decoder(nn.Module):
    """transformers' `LlamaModel`: embed_tokens, layers, norm."""

    compute: Operators = OURS

    def __init__(self, embed_tokens: Embedding, layers: Sequence[DecoderLayer], norm: RMSNorm) -> None:
        super().__init__()
        self.embed_tokens = embed_tokens
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(
        self, x: Tensor, positions: Tensor, layout: Mapping[str, Any], caches: Sequence[Cache] | None = None
    ) -> Tensor:
        """Embedded tokens (..., hidden) after the last norm.

        Args:
            x: rows of `embed_tokens`, or other hidden states.
            positions: of each token in its sequence.
            layout: what attention is told of sequences.
            caches: one a layer; they hold the tokens before and are added to.

        Returns:
            A tensor of x's shape and dtype."""
        layers: list[Any] = list(self.layers)
        following = [*(each.input_layernorm for each in layers[1:]), self.norm]
        normed: Tensor = layers[0].input_layernorm(x)
        for number, (layer, after) in enumerate(zip(layers, following, strict=True)):
            options = dict(layout) if caches is None else {**layout, "cache": caches[number]}
            x, normed = self._joined(x, layer.self_attn(normed, positions, **options), layer.post_attention_layernorm)
            x, normed = self._joined(x, layer.mlp(normed), after)
        return normed

    def _joined(self, x: Tensor, branch: Tensor, norm: RMSNorm) -> tuple[Tensor, Tensor]:
        """The residual stream with a branch added to it, and its norm."""
        return self.compute.joined_norm(x, branch, norm.weight, norm.sums, norm.epsilon(x.dtype))
