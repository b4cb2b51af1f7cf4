"""The forward pass over some sequences of equal length, end to end in one batch: logits of every token.

Knows no cache and no loss."""

from __future__ import annotations

from torch import Tensor

from samebits.model import Batch
from samebits.model.contracts.small_model import model_of
from samebits.nn.strategy import Operators


def forward(ids: Tensor, weights: Tensor, *, operators: Operators | None = None) -> Tensor:
    """float32 (B, S, vocabulary)."""
    model = model_of(weights, operators)
    hidden = model.hidden(Batch.of(list(ids), device=ids.device))
    return model.logits(hidden).reshape(*ids.shape, -1)
