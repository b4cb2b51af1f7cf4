"""A decoder of Llama's or Qwen3's shape: a config, its weights, and how they are computed with.

An `nn.Module` made of `samebits.nn`, with Hugging Face's names; `nn/decoder.py` is the forward pass. With `sums`,
weight gradients go on in them over micro-batches (the chain of a global batch, however it is cut). Knows neither a
loss, an optimizer nor a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from samebits.model.assembling import Weights, assembled
from samebits.model.batch import Batch
from samebits.model.config import ModelConfig
from samebits.model.weights import EMBEDDING, HEAD, initial, prefix, shapes
from samebits.nn import OURS, Operators
from samebits.ops.accumulation import Spans, Sums
from samebits.ops.attention.cache import Cache

if TYPE_CHECKING:
    from samebits.model.split import Split

# Where a tied head's gradient goes until it is joined with the embedding's: two chains, each of its own.
TIED_HEAD = "tied lm_head.weight"
# Parts of a layer in which one input meets several weights.
PARTS = {"self_attn": ("q", "k", "v"), "mlp": ("gate", "up")}


@dataclass(kw_only=True, eq=False, repr=False)
class Model(nn.Module):
    """A config and its weights. `sums`, where gradients are wanted: a float32 sum for each weight, or one a lane.

    Example:
        >>> model = Model.new(ModelConfig(vocab_size=97, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
        ...                          num_key_value_heads=2, head_dim=16, intermediate_size=80,
        ...                          max_position_embeddings=128), seed=0)
        >>> model(torch.tensor([[1, 2, 3]])).shape
        torch.Size([1, 3, 97])
    """

    config: ModelConfig
    weights: MutableMapping[str, Tensor]
    """By Hugging Face's names, in the order in which they are kept, normed and updated. What is put here is used. A
    tensor that requires a gradient stays the tensor it is; any other becomes a parameter on the same memory."""
    sums: dict[str, Sums] | None = None
    operators: Operators = OURS
    joined: Mapping[str, Tensor] = field(default_factory=dict)
    """Weights that are end to end because one input meets them all, by their names up to the layer's part."""
    split: Split | None = None
    """How the weights are cut over ranks, of which these are one rank's; None: they are whole."""

    def __post_init__(self) -> None:
        wanted = shapes(self.config) if self.split is None else self.split.shapes()
        for name in (*wanted, *self.weights):
            found = tuple(self.weights[name].shape) if name in self.weights else None
            if found != wanted.get(name):
                raise ValueError(f"model: {name} has shape {found}, config.json gives {wanted.get(name)}")
        given = dict(self.weights)
        super().__init__()
        self.model, self.lm_head = assembled(self.config)
        self.weights = Weights(self, self.config)
        self.weights.update({name: given[name] for name in wanted})
        self._hand_out()

    def _hand_out(self) -> None:
        """To every layer: how it computes, where its gradient goes on, and its joined weight."""
        compute = self.operators if self.split is None else self.split.operators(self.operators)
        modules = {name: vars(module) for name, module in self.named_modules() if hasattr(type(module), "compute")}
        for each in modules.values():
            each["compute"] = compute
        for name, joined in self.joined.items():
            modules[name]["joined"] = joined
        for name, sums in (self.sums or {}).items():
            owner = HEAD if name == TIED_HEAD else name
            modules[owner.removesuffix(".weight")]["sums"] = sums

    @classmethod
    def new(cls, config: ModelConfig, seed: int) -> Model:
        """Weights before the first step; no gradients are wanted yet (`requires_grad_()`, or `with_sums()`)."""
        return cls(config=config, weights=initial(config, seed))

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Model:
        """The model in a folder of Hugging Face's form, its parameters ready to be trained.

        Args:
            folder: has config.json and safetensors.
            dtype, device: of the parameters.

        Returns:
            A model whose parameters require gradients."""
        from samebits.model.huggingface import load_folder

        return load_folder(folder, dtype, device).requires_grad_()

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json and safetensors, which transformers reads too; all of it or nothing.

        Args:
            folder: a new folder, or an empty one."""
        from samebits.model.huggingface import save_folder

        save_folder(self, folder)

    @property
    def device(self) -> torch.device:
        return self.weights[EMBEDDING].device

    @property
    def dtype(self) -> torch.dtype:
        return self.weights[EMBEDDING].dtype

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Model:
        """To another device or dtype, in place: what belonged to the weights as they were is dropped."""
        self.sums, self.joined = None, {}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for module in (*self.model.modules(), *self.lm_head.modules()):
            for name in ("sums", "joined"):
                vars(module).pop(name, None)
        return self

    def parted(self, split: Split) -> Model:
        """This rank's part of whole weights."""
        return replace(self, weights=split.take(dict(self.weights)), sums=None, joined={}, split=split)

    @property
    def key_heads(self) -> int:
        """Key heads of which this rank has the keys."""
        return len(self.weights[f"{prefix(0)}self_attn.k_proj.weight"]) // self.config.head_dim

    def for_inference(self) -> Model:
        """The same weights in other places: those that meet the same input end to end, so that they are one product.

        Every output has its own chain, so no bit changes; a small batch is spared three calls a layer."""
        weights, joined = dict(self.weights), {}
        for layer in range(self.config.num_hidden_layers):
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
        tied = {TIED_HEAD: self.weights[EMBEDDING]} if self.config.tie_word_embeddings else {}
        wanted = {name: weight.detach().requires_grad_() for name, weight in self.weights.items()}
        sums: dict[str, Sums] = {}
        for name, weight in {**self.weights, **tied}.items():
            count = 1 if lanes is None else len(lanes) - 1
            zeros = torch.zeros(count, *weight.shape, dtype=torch.float32, device=weight.device)
            sums[name] = zeros[0] if lanes is None else Spans(tuple(zeros), tuple(lanes))
        return replace(self, weights=wanted, sums=sums, joined={})

    def gradients(self, lane: int = 0) -> dict[str, Tensor]:
        """The float32 gradient of each weight: its sum; of a tied one the embedding's sum plus the head's."""
        if self.sums is None:
            raise ValueError("model: there are no sums; allowed: of a model made by with_sums()")
        found = {name: each.parts[lane] if isinstance(each, Spans) else each for name, each in self.sums.items()}
        if self.config.tie_word_embeddings:
            found[EMBEDDING] = found[EMBEDDING] + found.pop(TIED_HEAD)
        return found

    def hidden(self, batch: Batch, caches: Sequence[Cache] | None = None) -> Tensor:
        """(T, hidden) after the last norm. `caches`, one a layer, hold the tokens before and are added to."""
        x = self.model.embed_tokens(batch.ids)
        return self.decoder(x, batch.positions, {"cu_seqlens": batch.spread_on(x.device)}, caches)

    def decoder(
        self, x: Tensor, positions: Tensor, layout: Mapping[str, Any], caches: Sequence[Cache] | None = None
    ) -> Tensor:
        """(..., hidden) after the last norm, of embedded tokens. `layout`: what attention is told of sequences."""
        found: Tensor = self.model(x, positions, layout, caches)
        return found

    def logprobs(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """float32 (T): of token ids[t] after hidden[t]; 0 where an id is -100."""
        return self.lm_head.logprobs(hidden, ids)

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 (T, vocabulary). A loss of one token a row takes `logprobs`, which keeps none of them."""
        found: Tensor = self.lm_head(hidden)
        return found

    def forward(self, input_ids: Tensor) -> Tensor:
        """The logits of every token of some rows of equal length.

        Args:
            input_ids: int64 (B, S).

        Returns:
            float32 (B, S, vocabulary)."""
        return self.logits(self.hidden(Batch.of(list(input_ids)))).reshape(*input_ids.shape, -1)
