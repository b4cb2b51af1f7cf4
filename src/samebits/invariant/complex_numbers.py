"""Complex numbers on the CPU: products and angles by real operations; what only moves or adds parts is torch's own.

torch computes a product by vector and behind a vector's end in two ways, with other bits. All else is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from samebits.invariant.pointwise import cos, sin

REASON: Final = "of complex numbers only sums, products and polar are offered; write it with real numbers"
PART_BY_PART: Final = frozenset(["add", "add_", "sub", "sub_", "neg", "neg_", "eq", "ne", "isnan", "isinf", "isfinite"])
"""One IEEE operation a part, in any form of torch's."""


def any_complex(args: tuple[Any, ...]) -> bool:
    for each in args:  # noqa: SIM110  asked at every call: a generator takes three times as long
        if each.is_complex() if isinstance(each, Tensor) else isinstance(each, complex):
            return True
    return False


def _parts(x: Any) -> tuple[Any, Any]:
    """(real, imaginary); of a real number the second is None."""
    if isinstance(x, complex):
        return x.real, x.imag
    if isinstance(x, Tensor) and x.is_complex():
        pairs = torch.view_as_real(x.resolve_conj())
        return pairs[..., 0], pairs[..., 1]
    return x, None


def multiply(x: Any, y: Any) -> Tensor:
    """(a + bi)(c + di) = (ac - bd) + (ad + bc)i, every product and sum rounded."""
    (a, b), (c, d) = _parts(x), _parts(y)
    if b is None:
        return torch.complex(a * c, a * d)
    if d is None:
        return torch.complex(a * c, b * c)
    return torch.complex(a * c - b * d, a * d + b * c)


def polar(length: Tensor, angle: Tensor) -> Tensor:
    return torch.complex(length * cos(angle), length * sin(angle))


ROUTED_OF_COMPLEX: Final[dict[str, Callable[..., Tensor]]] = {"mul": multiply}
