"""What every operator stands for in float64, end to end; and that no error of some bounds passes."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.model.contracts.operator_tolerance import bounded
from samebits.model.contracts.operators import Asked


def computed64(size: Tensor, recipe: Tensor, like: Tensor, seed: Tensor) -> Tensor:
    """The exact outputs and gradients, from the specs of the operators."""
    found = [bounds for _, _, bounds in bounded(Asked.of(size, recipe, like, seed))]
    return torch.cat([value.exact.double().reshape(-1) for bounds in found for value in bounds.values()])


def unseen64(size: Tensor, recipe: Tensor, like: Tensor, seed: Tensor) -> Tensor:
    """Nothing goes unseen."""
    found = [bounds for _, _, bounds in bounded(Asked.of(size, recipe, like, seed))]
    return torch.zeros(sum(map(len, found)), 2, dtype=torch.int64)
