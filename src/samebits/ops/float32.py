"""A reference's numbers: tensors as NumPy's float32 and back, where every operation rounds once and none is fused."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# Infinities, and what comes of them, are data like any other.
quietly = np.errstate(invalid="ignore", over="ignore", under="ignore")


def float32_of(tensor: Tensor) -> np.ndarray:
    """The tensor's values in float32, on the host."""
    return tensor.detach().float().cpu().numpy()


def like(values: np.ndarray, tensor: Tensor) -> Tensor:
    """Values rounded once to a tensor's dtype, where that tensor is."""
    return torch.from_numpy(np.asarray(values)).to(device=tensor.device, dtype=tensor.dtype)
