"""What is to be found of every function of the C++ library: nothing."""

from __future__ import annotations

import torch
from torch import Tensor


def nothing64(parts: Tensor) -> Tensor:
    """No function unreached, no call beside a buffer, no planted fault unseen."""
    return torch.zeros(len(parts), 3, dtype=torch.float64)
