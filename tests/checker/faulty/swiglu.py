"""Planted: gated products that misbehave somewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops import swiglu as _sound


def other_for_one_projection(gate: Tensor, up: Tensor) -> Tensor:
    """Gate and up that are halves of one tensor are computed together, in float32 and by another formula."""
    if gate.untyped_storage().data_ptr() != up.untyped_storage().data_ptr():
        return _sound(gate, up)
    wide = gate.float()
    return (wide * torch.sigmoid(wide) * up.float() * (1 + 2**-20)).to(gate.dtype)
