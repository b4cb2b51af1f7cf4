"""The one forward pass: training, scoring, prefill in chunks and decoding are one function of packed tokens.

With `sums`, weight gradients go on in them over micro-batches (the chain of a global batch, however it is cut); without
them nothing is kept for a backward pass. Knows neither a loss, an optimizer nor a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from samebits import ops
from samebits.model.batch import Batch
from samebits.model.config import Config
from samebits.model.weights import EMBEDDING, FINAL_NORM, HEAD, initial, prefix, shapes
from samebits.ops.accumulation import Spans, Sums, embedding_into, linear_into, rmsnorm_into, selected_logprob_into
from samebits.ops.attention.cache import Cache

if TYPE_CHECKING:
    from samebits.model.split import Split

# Where a tied head's gradient goes until it is joined with the embedding's: two chains, each of its own.
TIED_HEAD = "tied lm_head.weight"
# Parts of a layer in which one input meets several weights.
PARTS = {"self_attn": ("q", "k", "v"), "mlp": ("gate", "up")}


def residual_rmsnorm(x: Tensor, weight: Tensor, eps: float, residual: Tensor) -> tuple[Tensor, Tensor]:
    """(norm of h, h), h = round(x + residual), in one kernel."""
    pair = ops.rmsnorm(x, weight, eps, residual=residual)
    assert isinstance(pair, tuple)
    return pair


@dataclass(frozen=True, kw_only=True, slots=True)
class Operators:
    """What the forward pass is made of. Another set, stock torch's or a faulty one, can stand in for the comparison."""

    embedding: Callable[..., Tensor] = ops.embedding
    rmsnorm: Callable[..., Any] = ops.rmsnorm
    residual_rmsnorm: Callable[..., tuple[Tensor, Tensor]] = residual_rmsnorm
    linear: Callable[..., Tensor] = ops.linear
    rope: Callable[..., Tensor] = ops.rope
    attention: Callable[..., Any] = ops.attention
    swiglu: Callable[..., Tensor] = ops.swiglu
    lm_head: Callable[..., Tensor] = ops.lm_head
    logprob: Callable[..., Tensor] = ops.selected_logprob


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A config and its weights. `sums`, where gradients are wanted: a float32 sum for each weight, or one a lane."""

    config: Config
    weights: dict[str, Tensor]
    sums: dict[str, Sums] | None = None
    operators: Operators = Operators()
    joined: Mapping[str, Tensor] = field(default_factory=dict)
    """Weights that lie end to end because one input meets them all, by their names up to the layer's part."""
    split: Split | None = None
    """How the weights are cut over ranks, of which these are one rank's; None: they are whole."""

    def __post_init__(self) -> None:
        wanted = shapes(self.config) if self.split is None else self.split.shapes()
        for name in (*wanted, *self.weights):
            found = tuple(self.weights[name].shape) if name in self.weights else None
            if found != wanted.get(name):
                raise ValueError(f"model: {name} has shape {found}, the config says {wanted.get(name)}")

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
        options: dict[str, Any] = {"cu_seqlens": batch.edges}
        x = self._embedding(batch.ids)
        normed = self._norm(x, f"{prefix(0)}input_layernorm.weight")
        for layer in range(self.config.layers):
            at, following = prefix(layer), prefix(layer + 1)
            if caches is not None:
                options["cache"] = caches[layer]
            attended = self._attention(at, normed, batch.positions, options)
            branch = self._inward(attended, f"{at}self_attn.o_proj.weight")
            x, normed = self._joined_norm(x, branch, f"{at}post_attention_layernorm.weight")
            last = layer + 1 == self.config.layers
            x, normed = self._joined_norm(
                x, self._mlp(at, normed), FINAL_NORM if last else f"{following}input_layernorm.weight"
            )
        return normed

    def logprobs(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """float32 (T): of token ids[t] after hidden[t]; 0 where an id is -100."""
        weight, sums = self._head()
        if self.split is not None:
            return self.split.logprobs(hidden, weight, ids, sums)
        if sums is None:
            return self.operators.logprob(hidden, weight, ids)
        return selected_logprob_into(hidden, weight, ids, sums)

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 (T, vocabulary). Not differentiated into the sums: losses take `logprobs`."""
        if self.split is not None:
            return self.split.logits(hidden, self._head()[0])
        return self.operators.lm_head(hidden, self._head()[0])

    def _mlp(self, at: str, x: Tensor) -> Tensor:
        gate, up = self._products(x, at, "mlp")
        return self._inward(self.operators.swiglu(gate, up), f"{at}mlp.down_proj.weight")

    def _attention(self, at: str, x: Tensor, positions: Tensor, options: dict[str, Any]) -> Tensor:
        config = self.config
        q, k, v = (each.reshape(len(x), -1, config.head_size) for each in self._products(x, at, "self_attn"))
        if config.norms_of_heads:
            q, k = self._head_norms(q, k, at)
        if not k.shape[1]:
            # No heads on this rank: nothing, in which a gradient still finds its way to every product.
            return (q + k + v).reshape(len(x), 0)
        q, k = (self.operators.rope(each, positions, config.theta, scaling=config.scaling) for each in (q, k))
        attended: Tensor = self.operators.attention(q, k, v, **options)
        return attended.reshape(len(x), -1)

    def _head(self) -> tuple[Tensor, Sums | None]:
        name, place = (EMBEDDING, TIED_HEAD) if self.config.tied else (HEAD, HEAD)
        return self.weights[name], None if self.sums is None else self.sums[place]

    def _sum(self, name: str) -> Sums | None:
        return None if self.sums is None else self.sums[name]

    def _embedding(self, ids: Tensor) -> Tensor:
        if self.split is not None:
            return self.split.embedding(ids, self.weights[EMBEDDING], self._sum(EMBEDDING))
        if self.sums is None:
            return self.operators.embedding(ids, self.weights[EMBEDDING])
        return embedding_into(ids, self.weights[EMBEDDING], self.sums[EMBEDDING])

    def _linear(self, x: Tensor, name: str) -> Tensor:
        if self.sums is None:
            return self.operators.linear(x, self.weights[name])
        return linear_into(x, self.weights[name], self.sums[name])

    def _inward(self, x: Tensor, name: str) -> Tensor:
        """x with a weight that writes into the residual stream."""
        if self.split is None:
            return self._linear(x, name)
        return self.split.inward(x, self.weights[name], self._sum(name), name)

    def _products(self, x: Tensor, at: str, part: str) -> Sequence[Tensor]:
        """x with each of the weights that meet it."""
        whole = [f"{at}{part}.{name}_proj.weight" for name in PARTS[part]]
        # Of one row the parts are dense as they lie; of several, each would have to be copied out of the whole.
        joined = self.joined.get(f"{at}{part}") if len(x) == 1 else None
        if joined is None:
            if self.split is not None and self.sums is not None:
                weights, sums = [self.weights[name] for name in whole], [self.sums[name] for name in whole]
                return self.split.outward(x, weights, sums)
            return [self._linear(x, name) for name in whole]
        return torch.split(self.operators.linear(x, joined), [len(self.weights[name]) for name in whole], dim=-1)

    def _head_norms(self, q: Tensor, k: Tensor, at: str) -> Sequence[Tensor]:
        names = [f"{at}self_attn.{each}_norm.weight" for each in "qk"]
        if self.split is None or self.sums is None:
            return [self._norm(each, name) if each.numel() else each for each, name in zip((q, k), names, strict=True)]
        weights, sums = [self.weights[name] for name in names], [self.sums[name] for name in names]
        return self.split.head_norms(q, k, weights, sums)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        if self.sums is None:
            normed: Tensor = self.operators.rmsnorm(x, self.weights[name], self.config.eps)
            return normed
        return rmsnorm_into(x, self.weights[name], self.sums[name], self.config.eps)

    def _joined_norm(self, x: Tensor, branch: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """The residual stream with a branch added to it, and its norm. One kernel where nothing flows back: behind a
        fused one the gradients would be rounded elsewhere."""
        if self.sums is None and not torch.is_grad_enabled():
            normed, stream = self.operators.residual_rmsnorm(x, self.weights[name], self.config.eps, branch)
            return stream, normed
        stream = x + branch
        return stream, self._norm(stream, name)
