"""The one forward pass: training, scoring, prefill in chunks and decoding are one function of packed tokens.

With `sums`, weight gradients go on in them over micro-batches (the chain of a global batch, however it is cut); without
them nothing is kept for a backward pass. Knows neither a loss, an optimizer nor a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from samebits.model.batch import Batch
from samebits.model.config import Config
from samebits.model.operators import OURS, Operators
from samebits.model.weights import EMBEDDING, FINAL_NORM, HEAD, initial, prefix, shapes
from samebits.ops.accumulation import Spans, Sums
from samebits.ops.attention.cache import Cache

if TYPE_CHECKING:
    from samebits.model.split import Split

# Where a tied head's gradient goes until it is joined with the embedding's: two chains, each of its own.
TIED_HEAD = "tied lm_head.weight"
# Parts of a layer in which one input meets several weights.
PARTS = {"self_attn": ("q", "k", "v"), "mlp": ("gate", "up")}


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A config and its weights. `sums`, where gradients are wanted: a float32 sum for each weight, or one a lane."""

    config: Config
    weights: dict[str, Tensor]
    sums: dict[str, Sums] | None = None
    operators: Operators = OURS
    joined: Mapping[str, Tensor] = field(default_factory=dict)
    """Weights that lie end to end because one input meets them all, by their names up to the layer's part."""
    split: Split | None = None
    """How the weights are cut over ranks, of which these are one rank's; None: they are whole."""
    _compute: Operators = field(init=False, repr=False)
    """The operators, over the ranks where there are several."""

    def __post_init__(self) -> None:
        wanted = shapes(self.config) if self.split is None else self.split.shapes()
        for name in (*wanted, *self.weights):
            found = tuple(self.weights[name].shape) if name in self.weights else None
            if found != wanted.get(name):
                raise ValueError(f"model: {name} has shape {found}, the config says {wanted.get(name)}")
        compute = self.operators if self.split is None else self.split.operators(self.operators)
        object.__setattr__(self, "_compute", compute)

    @classmethod
    def new(cls, config: Config, seed: int) -> Model:
        """Weights before the first step."""
        return cls(config=config, weights=initial(config, seed))

    @property
    def device(self) -> torch.device:
        return self.weights[EMBEDDING].device

    @property
    def dtype(self) -> torch.dtype:
        return self.weights[EMBEDDING].dtype

    def to(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Model:
        moved = {name: weight.to(device=device, dtype=dtype) for name, weight in self.weights.items()}
        return replace(self, weights=moved, sums=None, joined={})

    def parted(self, split: Split) -> Model:
        """This rank's part of whole weights."""
        return replace(self, weights=split.take(self.weights), sums=None, joined={}, split=split)

    @property
    def key_heads(self) -> int:
        """Key heads of which this rank has the keys."""
        return len(self.weights[f"{prefix(0)}self_attn.k_proj.weight"]) // self.config.head_size

    def for_inference(self) -> Model:
        """The same weights in other places: those that meet the same input end to end, so that they are one product.

        Every output has its own chain, so no bit changes; a small batch is spared three calls a layer."""
        weights, joined = dict(self.weights), {}
        for layer in range(self.config.layers):
            for part, names in PARTS.items():
                whole = [f"{prefix(layer)}{part}.{name}_proj.weight" for name in names]
                together = torch.cat([self.weights[name] for name in whole]).detach()
                joined[f"{prefix(layer)}{part}"] = together
                weights |= zip(whole, torch.split(together, [len(self.weights[name]) for name in whole]), strict=True)
        return replace(self, weights=weights, joined=joined, sums=None)

    def with_sums(self, lanes: Sequence[int] | None = None) -> Model:
        """The same weights, to be differentiated, with sums of zero.

        `lanes`: where each lane's tokens begin in the one pass that follows, and their end; each has sums of its own.
        Without it all passes that follow are one lane's."""
        tied = {TIED_HEAD: self.weights[EMBEDDING]} if self.config.tied else {}
        wanted = {name: weight.detach().requires_grad_() for name, weight in self.weights.items()}
        sums: dict[str, Sums] = {}
        for name, weight in (self.weights | tied).items():
            count = 1 if lanes is None else len(lanes) - 1
            zeros = torch.zeros(count, *weight.shape, dtype=torch.float32, device=weight.device)
            sums[name] = zeros[0] if lanes is None else Spans(tuple(zeros), tuple(lanes))
        return replace(self, weights=wanted, sums=sums, joined={})

    def gradients(self, lane: int = 0) -> dict[str, Tensor]:
        """The float32 gradient of each weight: its sum; of a tied one the embedding's sum plus the head's."""
        if self.sums is None:
            raise ValueError("model: there are no sums; allowed: of a model made by with_sums()")
        found = {name: each.parts[lane] if isinstance(each, Spans) else each for name, each in self.sums.items()}
        if self.config.tied:
            found[EMBEDDING] = found[EMBEDDING] + found.pop(TIED_HEAD)
        return found

    def hidden(self, batch: Batch, caches: Sequence[Cache] | None = None) -> Tensor:
        """(T, hidden) after the last norm. `caches`, one a layer, hold the tokens before and are added to."""
        x = self._compute.embed(batch.ids, *self._weight(EMBEDDING))
        return self.decoder(x, batch.positions, {"cu_seqlens": batch.edges}, caches)

    def decoder(
        self, x: Tensor, positions: Tensor, layout: Mapping[str, Any], caches: Sequence[Cache] | None = None
    ) -> Tensor:
        """(..., hidden) after the last norm, of embedded tokens. `layout`: what attention is told of sequences."""
        config, compute = self.config, self._compute
        norms = [f"{prefix(layer)}input_layernorm.weight" for layer in range(config.layers)] + [FINAL_NORM]
        normed = compute.rmsnorm(x, *self._weight(norms[0]), config.eps)
        for layer in range(config.layers):
            at, options = prefix(layer), dict(layout)
            if caches is not None:
                options["cache"] = caches[layer]
            branch = self._attention(f"{at}self_attn", normed, positions, options)
            between = f"{at}post_attention_layernorm.weight"
            x, normed = compute.joined_norm(x, branch, *self._weight(between), config.eps)
            branch = self._mlp(f"{at}mlp", normed)
            x, normed = compute.joined_norm(x, branch, *self._weight(norms[layer + 1]), config.eps)
        return normed

    def logprobs(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """float32 (T): of token ids[t] after hidden[t]; 0 where an id is -100."""
        weight, sums = self._head()
        return self._compute.logprobs(hidden, weight, ids, sums)

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 (T, vocabulary). Not differentiated into the sums: losses take `logprobs`."""
        return self._compute.logits(hidden, self._head()[0])

    def _attention(self, at: str, x: Tensor, positions: Tensor, options: dict[str, Any]) -> Tensor:
        config, compute, rows = self.config, self._compute, x.shape[:-1]
        q, k, v = (each.reshape(*rows, -1, config.head_size) for each in self._products(x, at, "qkv"))
        if config.norms_of_heads:
            weights, sums = self._several(f"{at}.{each}_norm.weight" for each in "qk")
            q, k = compute.head_norms(q, k, weights, sums, config.eps)
        if k.shape[-2]:
            q, k = (compute.rope(each, positions, config.theta, scaling=config.scaling) for each in (q, k))
            attended = compute.attention(q, k, v, **options)
        else:
            # No heads on this rank: nothing, in which a gradient still finds its way to every product.
            attended = q + k + v
        name = f"{at}.o_proj.weight"
        return compute.inward(attended.reshape(*rows, -1), *self._weight(name), name)

    def _mlp(self, at: str, x: Tensor) -> Tensor:
        gate, up = self._products(x, at, ("gate", "up"))
        name = f"{at}.down_proj.weight"
        return self._compute.inward(self._compute.swiglu(gate, up), *self._weight(name), name)

    def _products(self, x: Tensor, at: str, names: Sequence[str]) -> Sequence[Tensor]:
        """x with each of the weights that meet it."""
        weights, sums = self._several(f"{at}.{name}_proj.weight" for name in names)
        # Of one row the parts are dense as they are; of several, each would have to be copied out of the whole.
        if at not in self.joined or x.shape[:-1].numel() > 1:
            return self._compute.outward(x, weights, sums)
        return torch.split(self._compute.linear(x, self.joined[at], None), [len(each) for each in weights], dim=-1)

    def _weight(self, name: str) -> tuple[Tensor, Sums | None]:
        """A weight, and where its gradient goes on."""
        return self.weights[name], None if self.sums is None else self.sums[name]

    def _several(self, names: Iterable[str]) -> tuple[list[Tensor], list[Sums | None]]:
        found = [self._weight(name) for name in names]
        return [weight for weight, _ in found], [sums for _, sums in found]

    def _head(self) -> tuple[Tensor, Sums | None]:
        if not self.config.tied:
            return self._weight(HEAD)
        return self.weights[EMBEDDING], None if self.sums is None else self.sums[TIED_HEAD]
