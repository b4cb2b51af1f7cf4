"""One backward pass through the preset of 50 million weights, whose 110 tensors are here one, end to end.

Knows no optimizer."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from samebits.model import Model
from samebits.model.contracts.small_model import joined, weight_gradients
from samebits.model.presets import PRESETS
from samebits.model.weights import shapes
from samebits.nn.strategy import Operators

CONFIG: Final = PRESETS["50m"]
SHAPES: Final = shapes(CONFIG)


def cut(weights: Tensor) -> dict[str, Tensor]:
    """The tensors of the model by name."""
    pieces = torch.split(weights, [math.prod(shape) for shape in SHAPES.values()])
    return {name: piece.reshape(shape) for (name, shape), piece in zip(SHAPES.items(), pieces, strict=True)}


def gradients(
    ids: Tensor, targets: Tensor, upstream: Tensor, weights: Tensor, *, operators: Operators | None = None
) -> Tensor:
    """The gradient of every weight, end to end in the order of `weights`."""
    model = Model(config=CONFIG, weights=cut(weights), operators=operators or Operators())
    return joined(weight_gradients(model, ids, targets, upstream))
