"""The decode step by the kernels of this folder; inputs, capturing, the draw and the bits are those of `DecodeStep`.

Where it begins and ends. Kernels of this folder are launched programmatically: one may run beside the kernel before it
until it has waited, and read before that what no kernel of a step writes (waiting.py). Everything else, whoever
launches it, is ordered by the stream as ever: it begins when all before it has ended. Hence:

- Copies in (ids, positions, rows of the cache, pages, how tokens are drawn) come before the step on its stream, and the
  first kernels of a step are not of this folder: the lengths' sum, the embedding, the first norm. They begin when the
  copies have ended and can be seen, and none of them tells the next kernel to begin, so that the first of this folder's
  begins when all programs of the first norm have ended.
- Lengths (`torch.add`) are written by a kernel of the step, so they are read after the wait only. A prefetch of them
  before it brings a line into the second cache, where the sum's result goes too.
- Before it is captured a step is made once on a stream of its own, which waits for the current one and is waited for:
  by events, that is for all that either was given.
- The draw is not of this folder: it begins when the last product has ended, and with it, since every program of every
  kernel waits before it ends, all kernels before it.
- The next step's copies, and the next replay of the graph, come after this one on the stream. A graph has ended when
  all of its nodes have; a copy, or a graph's first node, has no programmatic edge and begins after that. So positions
  and pages are not written while a kernel reads them before its wait, and no kernel runs beside the replay before.
- Within a step a kernel that is not of this folder may come between two that are: products of more rows, norms of
  heads. It begins when the one before has ended and never tells the next one to begin, which waits for all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits import ops
from samebits.infer.decode_step import Capturing, DecodeStep
from samebits.infer.hopper_step import launches
from samebits.infer.hopper_step.choices import ProductLaunch, by_rows
from samebits.infer.hopper_step.products import product, takes
from samebits.infer.pages import LayerCache
from samebits.model import Model
from samebits.ops.attention import SCALES
from samebits.ops.attention.forms import Rule, Sequences
from samebits.ops.rope.scaling import attention_factor, frequencies


class HopperStep(DecodeStep):
    """The pass of `rows` tokens of a model that lacks nothing (chosen_step.py)."""

    def __init__(
        self,
        model: Model,
        caches: Sequence[LayerCache],
        rows: int,
        pages: int,
        capturing: Capturing,
        launch: ProductLaunch | None = None,
    ) -> None:
        """`launch` of products decides speed alone; chosen by the number of rows unless it is given."""
        super().__init__(model, caches, rows, pages, capturing)
        self._launch, config = launch or by_rows(rows), model.config
        values = np.asarray(frequencies(config.head_dim, config.rope_theta, config.rope_scaling), np.float32)
        self._table = torch.tensor(values, device=model.device), attention_factor(config.rope_scaling)
        # A config can say neither a window nor a cap of scores.
        self._rule = Rule(causal=True, window=0, scale=SCALES[config.head_dim], softcap=0.0)

    def _hidden(self) -> Tensor:
        decoder: Any = self._model.model
        x = decoder.embed_tokens(self._batch.ids)
        layers: list[Any] = list(decoder.layers)
        normed: Tensor = layers[0].input_layernorm(x)
        following = [*(each.input_layernorm for each in layers[1:]), decoder.norm]
        for layer, cache, after in zip(layers, self._caches, following, strict=True):
            attended = self._product(self._attended(layer.self_attn, cache, normed), layer.self_attn.o_proj.weight)
            x, normed = self._norm(x, attended, layer.post_attention_layernorm)
            x, normed = self._norm(x, self._mlp(layer.mlp, normed), after)
        return normed

    def _logits(self, hidden: Tensor) -> Tensor:
        head: Tensor = self._model.lm_head.weight
        if takes(hidden, head):
            return product(hidden, head, self._launch, out_dtype=torch.float32)
        return ops.lm_head(hidden, head)

    def _product(self, x: Tensor, weight: Tensor) -> Tensor:
        return product(x, weight, self._launch) if takes(x, weight) else ops.linear(x, weight)

    def _norm(self, x: Tensor, branch: Tensor, norm: Any) -> tuple[Tensor, Tensor]:
        return launches.norm(x, branch, norm.weight.contiguous(), norm.epsilon(x.dtype))

    def _mlp(self, mlp: Any, normed: Tensor) -> Tensor:
        if takes(normed, mlp.joined):
            gated = product(normed, mlp.joined, self._launch, gated=True)
        else:
            # Parts of a joined product would be copied.
            gated = ops.swiglu(*(ops.linear(normed, each.weight) for each in (mlp.gate_proj, mlp.up_proj)))
        return self._product(gated, mlp.down_proj.weight)

    def _attended(self, layer: Any, cache: LayerCache, normed: Tensor) -> Tensor:
        """Attention's output before its last product; keys and values are in the cache then."""
        tokens, head = len(normed), layer.head_dim
        sizes = [len(each.weight) for each in (layer.q_proj, layer.k_proj, layer.v_proj)]
        q, k, v = torch.split(self._product(normed, layer.joined), sizes, dim=-1)
        if layer.q_norm is not None:
            heads = zip((q, k), (layer.q_norm, layer.k_norm), strict=True)
            q, k = (norm(each.reshape(tokens, -1, head)).reshape(tokens, -1) for each, norm in heads)
        unrotated = launches.Unrotated((q, k, v), self._batch.positions, self._tables.written, self._table)
        kept = cache.k_flat, cache.v_flat
        queries = launches.rotate(unrotated, head, kept)
        attended = launches.attend(queries, kept, self._sequences(), self._rule, self._batch.positions)
        return attended.reshape(tokens, -1)

    def _sequences(self) -> Sequences:
        queries, keys = self._batch.spread, self._tables.spread
        assert queries is not None
        return Sequences(
            q_start=queries.start,
            q_length=queries.length,
            k_start=keys.start,
            k_length=keys.length,
            pages=self._tables.pages,
            page_size=self._caches[0].page_size,
            longest_query=1,
            longest_key=keys.longest,
        )
