"""RMSNorm -> matmul -> RoPE -> attention -> SwiGLU -> LM head -> logprob: the operators of a language model in a chain.

The model's own layers on made-up weights and hidden states, with operators of which any one can be replaced by a faulty
one. Knows how a batch may be laid out; the gate beside this file knows which layouts must agree."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor

from samebits.model import Model, ModelConfig
from samebits.model.model import TIED_HEAD
from samebits.model.weights import EMBEDDING, FINAL_NORM, prefix
from samebits.nn.strategy import Operators
from samebits.numerics.exactly import inverse_root
from samebits.numerics.recipes import make
from samebits.ops.attention import DenseCache, PagedCache


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Small enough for two cores; heads in groups, a vocabulary that no block divides."""

    layers: int = 2
    width: int = 96
    heads: int = 4
    key_heads: int = 2
    head: int = 32
    inner: int = 160
    vocabulary: int = 700

    @property
    def config(self) -> ModelConfig:
        """As the model knows it; the table of tokens is never looked up, so the head's weight takes its place."""
        return ModelConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.key_heads,
            head_dim=self.head,
            intermediate_size=self.inner,
            max_position_embeddings=2**20,
            rms_norm_eps=1e-6,
        )


Cache = DenseCache | PagedCache


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Some sequences as one batch: which rows are whose, and how attention is told."""

    sequences: tuple[int, ...]
    """Numbers of the sequences, in order."""
    spans: tuple[tuple[slice | int, ...], ...]
    """Where each of them lies in the batch's token axes."""
    shape: tuple[int, ...]
    """The token axes: (tokens) packed, (batch, longest) padded."""
    options: dict[str, object]
    """What attention is told about it."""


def packed(sequences: tuple[int, ...], lengths: list[int]) -> Layout:
    edges = [0]
    for number in sequences:
        edges.append(edges[-1] + lengths[number])
    spans = tuple((slice(start, stop),) for start, stop in pairwise(edges))
    return Layout(sequences=sequences, spans=spans, shape=(edges[-1],), options={"cu_seqlens": torch.tensor(edges)})


def padded(sequences: tuple[int, ...], lengths: list[int], side: str) -> Layout:
    longest = max(lengths[number] for number in sequences)
    spans = []
    for row, number in enumerate(sequences):
        start = longest - lengths[number] if side == "left" else 0
        spans.append((row, slice(start, start + lengths[number])))
    options = {"lengths": torch.tensor([lengths[number] for number in sequences]), "padding": side}
    return Layout(sequences=sequences, spans=tuple(spans), shape=(len(sequences), longest), options=options)


@dataclass(frozen=True, slots=True)
class Text:
    """The input: for each sequence hidden states, target tokens and what flows into its logprobs."""

    hidden: list[Tensor]
    targets: list[Tensor]
    upstream: list[Tensor]

    @property
    def lengths(self) -> list[int]:
        return [len(each) for each in self.targets]


def make_text(lengths: list[int], sizes: Sizes, seed: int, format: str, device: str) -> Text:
    dtype = getattr(torch, format)

    def drawn(shape: tuple[int, ...], stream: int) -> Tensor:
        return torch.from_numpy(make("normal", shape, 1000 * seed + stream, format)).to(device)

    hidden = [drawn((length, sizes.width), 3 * i).to(dtype) for i, length in enumerate(lengths)]
    targets = [
        (drawn((length,), 3 * i + 1).abs() * 2**20).long() % sizes.vocabulary for i, length in enumerate(lengths)
    ]
    upstream = [drawn((length,), 3 * i + 2).float() for i, length in enumerate(lengths)]
    return Text(hidden, targets, upstream)


def make_weights(sizes: Sizes, seed: int, format: str, device: str) -> dict[str, Tensor]:
    query, key = sizes.heads * sizes.head, sizes.key_heads * sizes.head
    shapes: dict[str, tuple[int, ...]] = {"final": (sizes.width,), "head": (sizes.vocabulary, sizes.width)}
    for layer in range(sizes.layers):
        shapes |= {
            f"{layer}.before": (sizes.width,),
            f"{layer}.query": (query, sizes.width),
            f"{layer}.key": (key, sizes.width),
            f"{layer}.value": (key, sizes.width),
            f"{layer}.out": (sizes.width, query),
            f"{layer}.between": (sizes.width,),
            f"{layer}.gate": (sizes.inner, sizes.width),
            f"{layer}.up": (sizes.inner, sizes.width),
            f"{layer}.down": (sizes.width, sizes.inner),
        }
    weights = {}
    for number, (name, shape) in enumerate(shapes.items()):
        values = torch.from_numpy(make("normal", shape, 500_000 + 100 * seed + number, format))
        # Near one for norms; small enough elsewhere that scores and logits stay moderate.
        scaled = 1 + values * 0.1 if len(shape) == 1 else values * inverse_root(shape[-1])
        weights[name] = scaled.to(getattr(torch, format)).to(device)
    return weights


NAMES: Final = {
    "before": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "out": "self_attn.o_proj",
    "between": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def _named(tensors: dict[str, Tensor], head: str) -> dict[str, Tensor]:
    """By the model's names; `head` is what the weight of the head is called there."""
    named = {"final": FINAL_NORM, "head": head}
    for name in tensors.keys() - named.keys():
        layer, part = name.split(".")
        named[name] = f"{prefix(int(layer))}{NAMES[part]}.weight"
    return {named[name]: tensor for name, tensor in tensors.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """The weights, their gradient sums, and the operators that use them."""

    sizes: Sizes
    weights: dict[str, Tensor]
    operators: Operators = field(default_factory=Operators)
    sums: dict[str, Tensor] = field(default_factory=dict)

    def fresh(self) -> Chain:
        """The same chain with sums of zero."""
        zeros = {name: torch.zeros(w.shape, dtype=torch.float32, device=w.device) for name, w in self.weights.items()}
        return replace(self, sums=zeros)

    def logprobs(
        self,
        hidden: Tensor,
        targets: Tensor,
        positions: Tensor,
        options: dict[str, object],
        caches: list[Cache] | None = None,
    ) -> Tensor:
        """The logprob of every token's target; with caches, the tokens come after those already there."""
        model = Model(
            config=self.sizes.config,
            weights=_named(self.weights, EMBEDDING),
            sums=dict(_named(self.sums, TIED_HEAD)),
            operators=self.operators,
        )
        return model.logprobs(model.decoder(hidden, positions, options, caches), targets)
