"""A small model whose heads are as wide as the step for Hopper takes them, all its weights in one tensor end to end."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from samebits.model import Model
from samebits.model.contracts.small_model import SMALL
from samebits.model.contracts.specs import numbers
from samebits.model.weights import EMBEDDING, shapes
from samebits.numerics.exactly import inverse_root

CONFIG: Final = replace(SMALL, head_dim=64)


def cut(weights: Tensor, layers: int) -> dict[str, Tensor]:
    """The tensors of a model of so many layers by name."""
    named = shapes(replace(CONFIG, num_hidden_layers=layers))
    pieces = torch.split(weights, [math.prod(shape) for shape in named.values()])
    return {name: piece.reshape(shape) for (name, shape), piece in zip(named.items(), pieces, strict=True)}


def joined(tensors: dict[str, Tensor]) -> Tensor:
    """All tensors end to end."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors.values()])


def model_of(weights: Tensor, layers: int) -> Model:
    return Model(config=replace(CONFIG, num_hidden_layers=layers), weights=cut(weights, layers))


def make_weights(layers: int, recipe: str, format: str, seed: int) -> Tensor:
    """Norms near one; matrices by the recipe, small enough that scores and logits stay moderate."""
    made = {}
    for number, (name, shape) in enumerate(shapes(replace(CONFIG, num_hidden_layers=layers)).items()):
        drawn = numbers("normal" if len(shape) == 1 else recipe, shape, 500_000 + 100 * seed + number, format)
        scale = 1.0 if name == EMBEDDING else inverse_root(shape[-1])
        made[name] = 1 + drawn * 0.1 if len(shape) == 1 else drawn * scale
    return joined(made)
