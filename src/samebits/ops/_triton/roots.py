"""The square root in Triton, correctly rounded. Knows no operator."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from samebits.ops._triton.elements import elements_of, load_elements, run_elements, store_elements


@triton.jit(do_not_specialize=["N"], do_not_specialize_on_alignment=["x_ptr", "y_ptr"])
def square_root_elements(x_ptr, y_ptr, N: tl.int64, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    """y = sqrt(x), rounded once; `tl.sqrt` would be the approximate one."""
    offsets, inside = elements_of(N, BLOCK, ALIGNED)
    store_elements(y_ptr, offsets, tl.sqrt_rn(load_elements(x_ptr, offsets, inside, ALIGNED)), inside, ALIGNED)


def square_root(x: Tensor) -> Tensor:
    """Of a contiguous float32 tensor of at least one element."""
    return run_elements(square_root_elements, x)[0]
