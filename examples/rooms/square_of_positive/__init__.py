"""A kernel of one's own, bound by a contract of one's own: the square of what is positive, as some models use it.

samebits contract prove --rooms examples/rooms
samebits contract status --rooms examples/rooms"""

from __future__ import annotations

from torch import Tensor


def square_of_positive(x: Tensor) -> Tensor:
    """max(x, 0)^2, element by element; rounded once to the dtype of x."""
    if not x.is_floating_point():
        raise ValueError(f"square_of_positive: x has dtype {x.dtype}; allowed: floating point")
    return x.float().clamp(min=0).square().to(x.dtype)
