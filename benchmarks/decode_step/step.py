"""The decode step with the launches of this folder in the place of some, idea by idea; all else is the engine's own.

For models without norms of heads, 16 bits, on a GPU. Inputs and capturing are those of `DecodeStep`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from decode_step import launches
from decode_step.products import Form, product, takes
from samebits import ops
from samebits.infer.decode_step import Capturing, Decoded, DecodeStep
from samebits.infer.drawing import tokens_and_logprobs
from samebits.infer.pages import LayerCache
from samebits.model import Model
from samebits.ops.attention import SCALES
from samebits.ops.attention.forms import Rule, Sequences
from samebits.ops.rope.scaling import attention_factor, frequencies


@dataclass(frozen=True, kw_only=True, slots=True)
class Ideas:
    """What is done otherwise than the engine does it. None of it decides bits."""

    rotation: bool = False
    """Rotation of queries and keys and the cache's writes by one kernel."""
    unfilled: bool = False
    """Attention without a launch that looks for rows to fill."""
    most_keys: int = 0
    """With it: no sequence has more, though its table has room for them, so that no splits are merged that nobody
    has. An engine would have a graph for up to one split's keys, and one for any number."""
    form: Form | None = None
    """Products by the kernel of this folder: q, k and v as one, SwiGLU at the end of gate and up."""
    programmatic: bool = False
    """The kernels of this folder begin before the kernel before has ended; norms are among them then."""


ENGINE: Final = Ideas()


class JoinedStep(DecodeStep):
    """A step of so many rows, with some ideas."""

    def __init__(
        self,
        model: Model,
        caches: Sequence[LayerCache],
        rows: int,
        pages: int,
        capturing: Capturing,
        ideas: Ideas = ENGINE,
    ) -> None:
        if model.config.use_qk_norm or not model.joined:
            raise ValueError("decode_step: the model has norms of heads, or apart weights; allowed: for_inference()")
        super().__init__(model, caches, rows, pages, capturing)
        self._ideas, config = ideas, model.config
        values = np.asarray(frequencies(config.head_dim, config.rope_theta, config.rope_scaling), np.float32)
        self._table = torch.tensor(values, device=model.device), attention_factor(config.rope_scaling)
        self._rule = Rule(causal=True, window=0, scale=SCALES[config.head_dim], softcap=0.0)

    def _pass(self) -> Decoded:
        torch.add(self._batch.positions, 1, out=self._tables.spread.length)
        model: Any = self._model
        x = model.model.embed_tokens(self._batch.ids)
        normed = model.model.layers[0].input_layernorm(x)
        for number in range(len(model.model.layers)):
            x, normed = self.layer(number, x, normed)
        logits = self._logits(normed)
        return Decoded(normed, logits, *tokens_and_logprobs(model.operators, logits, self._choices))

    def layer(self, number: int, x: Tensor, normed: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream after a layer, and its norm as the next layer, or the end, has it."""
        decoder: Any = self._model.model
        layer, cache = decoder.layers[number], self._caches[number]
        cache.at(self._tables)
        attended = self._attended(layer.self_attn, cache, normed)
        x, normed = self._norm(
            x, self._product(attended, layer.self_attn.o_proj.weight), layer.post_attention_layernorm
        )
        last = number + 1 == len(decoder.layers)
        after = decoder.norm if last else decoder.layers[number + 1].input_layernorm
        return self._norm(x, self._mlp(layer.mlp, normed), after)

    def _form_for(self, x: Tensor, weight: Tensor) -> Form | None:
        """Of our product, where it is wanted and can be."""
        return self._ideas.form if takes(x, weight) else None

    def _product(self, x: Tensor, weight: Tensor) -> Tensor:
        form = self._form_for(x, weight)
        if form is None:
            return ops.linear(x, weight)
        return product(x, weight, form, programmatic=self._ideas.programmatic)

    def _logits(self, hidden: Tensor) -> Tensor:
        head = self._model.lm_head.weight
        form = self._form_for(hidden, head)
        if form is None:
            return ops.lm_head(hidden, head)
        return product(hidden, head, form, programmatic=self._ideas.programmatic, out_dtype=torch.float32)

    def _norm(self, x: Tensor, branch: Tensor, norm: Any) -> tuple[Tensor, Tensor]:
        eps = norm.epsilon(x.dtype)
        if not self._ideas.programmatic:
            normed, stream = ops.add_rmsnorm(x, branch, norm.weight, eps)
            return stream, normed
        return launches.norm(x, branch, norm.weight, eps, programmatic=True)

    def _apart(self, x: Tensor, layers: Sequence[Any], joined: Tensor, *, copied: bool) -> Sequence[Tensor]:
        """Products with several weights, as one where that is ours, or of one row; `copied`: whoever reads the parts
        would copy those of more rows."""
        if len(x) > 1 and copied and self._form_for(x, joined) is None:
            return [ops.linear(x, each.weight) for each in layers]
        return torch.split(self._product(x, joined), [len(each.weight) for each in layers], dim=-1)

    def _mlp(self, mlp: Any, normed: Tensor) -> Tensor:
        form = self._form_for(normed, mlp.joined)
        if form is None:
            gated = ops.swiglu(*self._apart(normed, (mlp.gate_proj, mlp.up_proj), mlp.joined, copied=True))
        else:
            gated = product(normed, mlp.joined, form, programmatic=self._ideas.programmatic, gated=True)
        return self._product(gated, mlp.down_proj.weight)

    def _attended(self, layer: Any, cache: LayerCache, normed: Tensor) -> Tensor:
        """Attention's output before its last product; keys and values are in the cache then."""
        tokens, head = len(normed), layer.head_dim
        ideas, tables, positions = self._ideas, self._tables, self._batch.positions
        apart = layer.q_proj, layer.k_proj, layer.v_proj
        q, k, v = self._apart(normed, apart, layer.joined, copied=not ideas.rotation)
        if ideas.rotation:
            kept = cache.k_flat, cache.v_flat
            q = launches.rotate(
                (q, k, v), head, kept, positions, tables.written, self._table, programmatic=ideas.programmatic
            )
        else:
            q, k, v = (each.reshape(tokens, -1, head) for each in (q, k, v))
            q, k = layer.rotary_emb(q, positions), layer.rotary_emb(k, positions)
            cache.append_spread(k, v, tables.spread)
        if not ideas.unfilled:
            return ops.attention(q, None, None, cu_seqlens=self._batch.spread, cache=cache).reshape(tokens, -1)
        given = cache.k_flat, cache.v_flat, self._sequences()
        return launches.attend(q, *given, self._rule, programmatic=ideas.programmatic).reshape(tokens, -1)

    def _sequences(self) -> Sequences:
        queries, keys, most = self._batch.spread, self._tables.spread, self._ideas.most_keys
        assert queries is not None
        return Sequences(
            q_start=queries.start,
            q_length=queries.length,
            k_start=keys.start,
            k_length=keys.length,
            pages=self._tables.pages,
            page_size=self._caches[0].page_size,
            longest_query=1,
            longest_key=min(keys.longest, most) if most else keys.longest,
        )
