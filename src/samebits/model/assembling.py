"""The modules of a decoder without numbers, and its weights by name in the order of the config.

Knows no computation."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor, nn

from samebits.model.config import ModelConfig
from samebits.model.weights import EMBEDDING, HEAD, shapes
from samebits.nn import Attention, Decoder, DecoderLayer, Embedding, Linear, LMHead, RMSNorm, SwiGLU

Module = TypeVar("Module", bound=nn.Module)
# No memory is taken, no numbers are drawn: weights come from elsewhere.
NOWHERE = torch.device("meta")


def assembled(config: ModelConfig) -> tuple[Decoder, LMHead]:
    """The decoder and the head of a config; their weights are to be put in."""
    decoder, head = _first(config)
    return _twin(decoder), _twin(head)


def _twin(module: Module) -> Module:
    """The same modules again, with nothing that one could change in the other: twenty times faster than made anew."""
    twin: Module = object.__new__(type(module))
    vars(twin).update(
        {name: each.copy() if isinstance(each, dict | set) else each for name, each in vars(module).items()}
    )
    children = vars(twin)["_modules"]
    children.update({name: each if each is None else _twin(each) for name, each in children.items()})
    return twin


@cache
def _first(config: ModelConfig) -> tuple[Decoder, LMHead]:
    layers = [_layer(config) for _ in range(config.num_hidden_layers)]
    # To draw nothing in a weight that is nowhere, torch would import its compiler: seconds of every process.
    weight = torch.empty(config.vocab_size, config.hidden_size, device=NOWHERE)
    embedding = Embedding(config.vocab_size, config.hidden_size, _weight=weight)
    norm = RMSNorm(config.hidden_size, config.rms_norm_eps, device=NOWHERE)
    return Decoder(embedding, layers, norm), LMHead(config.hidden_size, config.vocab_size, device=NOWHERE)


def _layer(config: ModelConfig) -> DecoderLayer:
    attention = Attention(
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        qk_norm=config.use_qk_norm,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=config.rope_theta,
        rope_scaling=config.rope_scaling,
        device=NOWHERE,
    )
    mlp = SwiGLU(config.hidden_size, config.intermediate_size, device=NOWHERE)
    return DecoderLayer(attention, mlp, config.hidden_size, config.rms_norm_eps, device=NOWHERE)


class Weights(MutableMapping[str, Tensor]):
    """The weights of a module by name, in the order of the config. A tied head is the embedding's own tensor."""

    def __init__(self, module: nn.Module, config: ModelConfig) -> None:
        modules = dict(module.named_modules())
        self._owners = {name: [modules[name.removesuffix(".weight")]] for name in shapes(config)}
        if config.tie_word_embeddings:
            self._owners[EMBEDDING].append(modules[HEAD.removesuffix(".weight")])

    def __getitem__(self, name: str) -> Tensor:
        owner = self._owners[name][0]
        found: Tensor = owner.__dict__["_parameters"].get("weight")
        return owner.__dict__["_buffers"]["weight"] if found is None else found

    def __setitem__(self, name: str, weight: Tensor) -> None:
        if not isinstance(weight, nn.Parameter) and not weight.requires_grad:
            weight = nn.Parameter(weight, requires_grad=False)
        for owner in self._owners[name]:
            for kind in ("_parameters", "_buffers"):
                owner.__dict__[kind].pop("weight", None)
            # A leaf that autograd is asked about by its maker must stay the tensor that it is.
            owner.__dict__["_parameters" if isinstance(weight, nn.Parameter) else "_buffers"]["weight"] = weight
            if isinstance(owner, Linear):
                owner.out_features, owner.in_features = weight.shape

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"model: {name} cannot be taken out; allowed: other numbers in its place")

    def __iter__(self) -> Iterator[str]:
        return iter(self._owners)

    def __len__(self) -> int:
        return len(self._owners)

    def __or__(self, other: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**self, **other}
