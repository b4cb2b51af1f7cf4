"""What is to be found of calls in C++: nothing."""

from __future__ import annotations

import torch
from torch import Tensor


def nothing64(parts: Tensor) -> Tensor:
    """No call differs, no mode is unheard, no call is launched that does more."""
    return torch.zeros(len(parts), 3, dtype=torch.float64)
