"""One token of every request: the forward pass as a list of calls on memory that stays, for steps that only decode.

The model's kernels in the model's order, so the same bits. What is spared is all that stands around them, which for one
request takes half as long as they do. Made once for a number of requests. CPU only; knows no request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from samebits.infer.direct import DIRECT, rule_of
from samebits.infer.pages import LayerCache, places
from samebits.model.model import Model
from samebits.model.weights import EMBEDDING, FINAL_NORM, prefix
from samebits.ops._cpu import FORMATS, pointer, run
from samebits.ops.attention.cpu_kernel import _Description
from samebits.ops.attention.forms import Sequences
from samebits.ops.rope.scaling import attention_factor, frequencies

Call = tuple[Callable[..., Any], tuple[Any, ...]]


def can_decode(model: Model) -> bool:
    """Whether the pass is this one: our kernels on the CPU, and every weight whole and dense."""
    dense = all(weight.is_contiguous() for weight in model.weights.values())
    return model.operators is DIRECT and model.split is None and dense


class Decoding:
    """The pass of `rows` tokens, each of a request of its own."""

    def __init__(self, model: Model, caches: Sequence[LayerCache], rows: int, pages: int) -> None:
        """`pages`: the most that the table of a request can name."""
        config = model.config
        self._model, self._caches, self._rows = model, caches, rows
        # Calls hold addresses: what lies there must live as long as they do.
        self._alive = [*model.weights.values(), *model.joined.values()]
        self._queries, self._keys = config.heads * config.head_size, config.key_heads * config.head_size
        self._ids, self._positions, self._written, self._lengths = torch.zeros(4, rows, dtype=torch.int64)
        self._pages = torch.zeros(rows, pages, dtype=torch.int32)
        # Alternating: a kernel must not read what it writes.
        self._streams = [self._room(config.hidden), self._room(config.hidden)]
        self._normed, self._branch = self._room(config.hidden), self._room(config.hidden)
        self._statistic = torch.empty(rows * config.heads)
        self._qkv, self._turned = self._room(self._queries + 2 * self._keys), self._room(self._queries + self._keys)
        self._normed_heads = self._room(self._queries + self._keys)
        self._attended, self._maxima = self._room(self._queries), torch.empty(rows, config.heads)
        self._gates, self._gated = self._room(2 * config.intermediate), self._room(config.intermediate)
        turns = frequencies(config.head_size, config.theta, config.scaling)
        self._frequencies = torch.tensor(turns, dtype=torch.float32)
        self._factor = attention_factor(config.scaling)
        self._sequences = Sequences(
            q_start=torch.arange(rows), q_length=torch.ones(rows, dtype=torch.int64),
            k_start=torch.zeros(rows, dtype=torch.int64), k_length=self._lengths, pages=self._pages,
            page_size=caches[0].page_size, longest_query=1, longest_key=0,
        )  # fmt: skip
        heads = self._turned[: rows * self._queries].view(rows, config.heads, config.head_size)
        self._description = _Description(
            self._sequences, rule_of(config.head_size), heads, caches[0].k_flat, caches[0].v_flat, None
        )
        self._calls = self._pass()

    def _room(self, width: int) -> Tensor:
        return torch.empty(self._rows * width, dtype=self._model.dtype)

    def hidden(self, ids: Sequence[int], held: Sequence[int], tables: Sequence[Sequence[int]]) -> Tensor:
        """(rows, hidden) after the last norm, until the next call. Keys are added in pages that tables name already."""
        self._ids.copy_(torch.tensor(ids))
        self._positions.copy_(torch.tensor(held))
        torch.add(self._positions, 1, out=self._lengths)
        size = self._sequences.page_size
        written = [places(table, key, key + 1, size)[0] for table, key in zip(tables, held, strict=True)]
        self._written.copy_(torch.tensor(written))
        for row, table in zip(self._pages, tables, strict=True):
            row[: len(table)] = torch.tensor(table, dtype=torch.int32)
        for function, arguments in self._calls:
            function(*arguments)
        return self._normed.view(self._rows, -1)

    def _pass(self) -> list[Call]:
        weights, config = self._model.weights, self._model.config
        stream, other = self._streams
        row = config.hidden * stream.element_size()
        table = weights[EMBEDDING]
        calls = [_kernel("embedding_forward", "qqppp", self._rows, row, *map(pointer, (self._ids, table, stream)))]
        calls.append(self._norm(stream, weights[f"{prefix(0)}input_layernorm.weight"], self._normed))
        for layer, cache in enumerate(self._caches):
            at = prefix(layer)
            calls += self._attention(at, cache)
            calls.append(self._product(self._attended, weights[f"{at}self_attn.o_proj.weight"], self._branch))
            calls.append(self._added_norm(stream, other, weights[f"{at}post_attention_layernorm.weight"]))
            calls += self._gate(at)
            calls.append(self._product(self._gated, weights[f"{at}mlp.down_proj.weight"], self._branch))
            following = f"{prefix(layer + 1)}input_layernorm.weight" if layer + 1 < config.layers else FINAL_NORM
            calls.append(self._added_norm(other, stream, weights[following]))
        return calls

    def _attention(self, at: str, cache: LayerCache) -> list[Call]:
        config, rows = self._model.config, self._rows
        calls = self._products(f"{at}self_attn", "qkv", self._qkv)
        q, k, v = _parts(self._qkv, [rows * self._queries, rows * self._keys, rows * self._keys])
        if config.norms_of_heads:
            normed_q, normed_k = _parts(self._normed_heads, [len(q), len(k)])
            for heads, normed, name in ((q, normed_q, "q"), (k, normed_k, "k")):
                calls.append(self._norm(heads, self._model.weights[f"{at}self_attn.{name}_norm.weight"], normed))
            q, k = normed_q, normed_k
        turned_q, turned_k = _parts(self._turned, [len(q), len(k)])
        if rows == 1:
            # The heads of one token lie end to end, those of its keys behind those of its query.
            calls.append(self._turn(q, turned_q, config.heads + config.key_heads))
        else:
            calls += [self._turn(q, turned_q, config.heads), self._turn(k, turned_k, config.key_heads)]
        for kept, new in ((cache.k_flat, turned_k), (cache.v_flat, v)):
            calls.append((kept.index_copy_, (0, self._written, new.view(rows, config.key_heads, config.head_size))))
        tensors = (turned_q, cache.k_flat, cache.v_flat, self._attended, self._maxima)
        calls.append(_kernel("attention_forward", "p" * 8, *self._description.addresses(), *map(pointer, tensors)))
        return calls

    def _gate(self, at: str) -> list[Call]:
        gate, up = _parts(self._gates, [len(self._gated), len(self._gated)])
        tensors = map(pointer, (gate, up, self._gated))
        gated = _kernel("swiglu_forward", "iqppp", self._format, len(self._gated), *tensors)
        return [*self._products(f"{at}mlp", ("gate", "up"), self._gates), gated]

    def _products(self, part: str, names: Sequence[str], out: Tensor) -> list[Call]:
        """The normed stream with each of some weights, end to end."""
        joined = self._model.joined.get(part)
        if joined is not None and self._rows == 1:
            return [self._product(self._normed, joined, out)]
        weights = [self._model.weights[f"{part}.{name}_proj.weight"] for name in names]
        outs = _parts(out, [self._rows * len(weight) for weight in weights])
        return [self._product(self._normed, weight, each) for weight, each in zip(weights, outs, strict=True)]

    @property
    def _format(self) -> int:
        return FORMATS[self._model.dtype]

    def _product(self, x: Tensor, weight: Tensor, out: Tensor) -> Call:
        columns, depth = weight.shape
        return _kernel(
            "matmul", "iiqqqpqqpqqppp", self._format, self._format, self._rows, columns, depth,
            x.data_ptr(), depth, 1, weight.data_ptr(), *weight.T.stride(), None, None, out.data_ptr(),
        )  # fmt: skip

    def _norm(self, x: Tensor, weight: Tensor, y: Tensor) -> Call:
        return _kernel(
            "rmsnorm_forward", "iqqpppfppp", self._format, len(x) // len(weight), len(weight), x.data_ptr(),
            weight.data_ptr(), None, self._model.config.eps, y.data_ptr(), self._statistic.data_ptr(), None,
        )  # fmt: skip

    def _added_norm(self, before: Tensor, after: Tensor, weight: Tensor) -> Call:
        """The branch joins the stream, rounded, and that is normed."""
        return _kernel(
            "rmsnorm_forward", "iqqpppfppp", self._format, self._rows, len(weight), before.data_ptr(),
            weight.data_ptr(), self._branch.data_ptr(), self._model.config.eps, self._normed.data_ptr(),
            self._statistic.data_ptr(), after.data_ptr(),
        )  # fmt: skip

    def _turn(self, x: Tensor, y: Tensor, heads: int) -> Call:
        config = self._model.config
        return _kernel(
            "rope_rotate", "iqqqpppfiip", self._format, self._rows, heads, config.head_size,
            *map(pointer, (x, self._positions, self._frequencies)), self._factor, 0, 0, y.data_ptr(),
        )  # fmt: skip


def _kernel(name: str, signature: str, *arguments: int | float | None) -> Call:
    return run, (name, signature, *arguments)


def _parts(flat: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = torch.split(flat, list(sizes))
    return found
