"""The toy, said plainly: float32 after every operation, once to the dtype at the end."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from samebits.ops.float32 import float32_of, like, quietly

HALF = np.float32(0.5)


@quietly
def forward(a: Tensor, b: Tensor) -> Tensor:
    """y = (a * 0.5) * b."""
    if a.dtype == torch.float64:
        return halved_product64(a, b)
    return like((float32_of(a) * HALF) * float32_of(b), a)


@quietly
def backward(dy: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """da = (dy * 0.5) * b, db = (dy * 0.5) * a."""
    return forward(dy, b), forward(dy, a)


def halved_product64(a: Tensor, b: Tensor) -> Tensor:
    """y = a b / 2, in float64."""
    return a.double() * 0.5 * b.double()
