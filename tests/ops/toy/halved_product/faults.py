"""The toy's own planted faults; those of the standard promises come by themselves."""

from torch import Tensor


def forgets_the_half(a: Tensor, b: Tensor) -> Tensor:
    """Breaks accuracy: a b."""
    return a * b


def forgets_b(a: Tensor, b: Tensor) -> Tensor:
    """Breaks commuting: a / 2 + 0 b."""
    return a * 0.5 + b * 0.0
