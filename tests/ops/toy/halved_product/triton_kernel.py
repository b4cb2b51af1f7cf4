"""The toy by Triton: one pass over the elements."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from samebits.ops._triton.elements import elements_of, load_elements, run_elements, store_elements


@triton.jit(do_not_specialize=["N"], do_not_specialize_on_alignment=["a_ptr", "b_ptr", "y_ptr"])
def halved_product_forward(a_ptr, b_ptr, y_ptr, N: tl.int64, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    """y = round((a * 0.5) * b)."""
    offsets, inside = elements_of(N, BLOCK, ALIGNED)
    a = load_elements(a_ptr, offsets, inside, ALIGNED)
    b = load_elements(b_ptr, offsets, inside, ALIGNED)
    store_elements(y_ptr, offsets, (a * 0.5) * b, inside, ALIGNED)


def forward(a: Tensor, b: Tensor) -> Tensor:
    """y = (a * 0.5) * b."""
    return run_elements(halved_product_forward, a, b)[0]


def backward(dy: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """da = (dy * 0.5) * b, db = (dy * 0.5) * a."""
    return forward(dy, b), forward(dy, a)
