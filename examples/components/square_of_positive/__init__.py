"""A kernel of one's own, bound by a contract of one's own: the square of what is positive, as some models use it.

samebits contract prove --components examples/components
samebits contract status --components examples/components"""

from __future__ import annotations

import torch
from torch import Tensor


def square_of_positive(x: Tensor) -> Tensor:
    """max(x, 0)^2, element by element; rounded once to the dtype of x."""
    if not x.is_floating_point():
        raise ValueError(f"square_of_positive: x has dtype {x.dtype}; allowed: floating point")
    wide = x.float()
    # Not clamp: of -0 it makes +0 or -0, by where in memory the number lies, and the gradient shows which.
    positive = torch.where(wide <= 0, 0.0, wide)
    # Not square(): its gradient makes 2 x first, which is infinite for the largest x whatever flows in.
    return (positive * positive).to(x.dtype)
