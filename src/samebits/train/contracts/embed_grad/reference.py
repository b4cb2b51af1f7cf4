"""The same in float64 with torch's own functions."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.model.contracts.small_model import cut
from samebits.model.weights import EMBEDDING
from samebits.train.contracts.embed_grad import MAX_NORM, VOCABULARY


def table_gradients64(dy: Tensor, ids: Tensor) -> Tensor:
    """For each step the clipped gradient, and below it the table's."""
    dy = dy.double()
    norm = dy.flatten(1).norm(dim=1)[:, None, None]
    dy = dy * (MAX_NORM / (norm + 1e-6)).clamp(max=1.0)
    table = torch.zeros(dy.shape[0], VOCABULARY, dy.shape[2], dtype=torch.float64, device=dy.device)
    table.scatter_add_(1, ids[..., None].expand_as(dy), dy)
    return torch.cat([dy, table], 1)


def furthest64(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor) -> Tensor:
    """(vocabulary, width): how large an element may be after so many steps of AdamW with beta1 0.9 and beta2 0.95.

    A step moves it by less than three rates: by Cauchy and Schwarz the mean of gradients is at most the root of 0.2
    times 1 / (1 - 0.81 / 0.95), 1.17, times the root of the mean of squares, and the corrections of both are at most
    2.24 apart."""
    table = cut(weights.double())[EMBEDDING]
    return table.abs() + 3 * int(steps) * float(rate)
