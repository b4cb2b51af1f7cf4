"""The same in float64 with torch's own functions."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.train.contracts.embed_grad import MAX_NORM, VOCABULARY


def table_gradients64(dy: Tensor, ids: Tensor) -> Tensor:
    """For each step the clipped gradient, and below it the table's."""
    dy = dy.double()
    norm = dy.flatten(1).norm(dim=1)[:, None, None]
    dy = dy * (MAX_NORM / (norm + 1e-6)).clamp(max=1.0)
    table = torch.zeros(dy.shape[0], VOCABULARY, dy.shape[2], dtype=torch.float64, device=dy.device)
    table.scatter_add_(1, ids[..., None].expand_as(dy), dy)
    return torch.cat([dy, table], 1)
