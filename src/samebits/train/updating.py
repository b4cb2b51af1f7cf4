"""From gradients to weights: what an update asks of operators one after another, and what may stand in for that.

Knows tensors and an optimizer, no model and no data. Nothing here waits for a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from samebits.model.weights import EMBEDDING
from samebits.ops.adamw import AdamW
from samebits.trace import span
from samebits.train import watch

Clip = Callable[[list[Tensor], Tensor, float], None]
"""Clips all gradients by their norm as one, in place."""
Norms = Callable[[dict[str, Tensor], str], tuple[Tensor, Tensor]]
"""Of all gradients as one, and of the tensor of that name alone."""


class Update(Protocol):
    """One update of all weights; what is watched of it."""

    @property
    def rounded(self) -> bool:
        """Whether the roundings that passes read are those of the new weights afterwards."""

    def seen(self) -> tuple[Tensor, Tensor]:
        """The norm of all gradients as one, and the largest magnitude of each, NaN where one is. Nothing is changed."""

    def made(self, norm: Tensor, max_norm: float) -> tuple[Tensor, Tensor]:
        """Clips by the norm and updates. The norms after clipping, of all gradients and of the embedding's alone; the
        largest magnitude of each weight."""


@dataclass(frozen=True, slots=True)
class OneByOne:
    """By operators, one after another."""

    gradients: dict[str, Tensor]
    weights: Mapping[str, Tensor]
    optimizer: AdamW
    clip: Clip
    norms: Norms
    few: list[Tensor]
    """The gradients as they are clipped."""
    rounded: bool = False

    def seen(self) -> tuple[Tensor, Tensor]:
        # Asked for before anybody waits: the device computes it while the host looks at the gradients.
        norm, _ = self.norms(self.gradients, EMBEDDING)
        return norm, watch.largest(self.gradients)

    def made(self, norm: Tensor, max_norm: float) -> tuple[Tensor, Tensor]:
        for name, weight in self.weights.items():
            weight.grad = self.gradients[name]
        with span("norm and clipping"):
            self.clip(self.few, norm, max_norm)
            shorter = torch.stack(self.norms(self.gradients, EMBEDDING))
        with span("optimizer"):
            self.optimizer.step()
            for weight in self.weights.values():
                weight.grad = None
        return shorter, watch.largest(self.weights)
