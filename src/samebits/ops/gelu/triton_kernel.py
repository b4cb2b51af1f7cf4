"""GELU by Triton: one pass over the elements; the backward pass recomputes what it needs instead of storing it.

Knows nothing of autograd, validation or empty tensors; the public function does. Block and warps decide speed alone."""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from samebits.numerics.elementary.triton_generated import erf, exp, tanh
from samebits.ops._triton.elements import elements_of, load_elements, run_elements, store_elements
from samebits.ops.gelu import reference

# Decide bits: Triton rounds each once to float32 where it meets a block of float32.
ROOT_HALF: Final = tl.constexpr(reference.ROOT_HALF)
DENSITY: Final = tl.constexpr(reference.DENSITY)
ROOT_TWO_OVER_PI: Final = tl.constexpr(reference.ROOT_TWO_OVER_PI)
CUBIC: Final = tl.constexpr(reference.CUBIC)
CUBIC_SLOPE: Final = tl.constexpr(reference.CUBIC_SLOPE)


@triton.jit
def tanh_of(x):
    return tanh(tl.fma((x * x) * CUBIC, x, x) * ROOT_TWO_OVER_PI)


@triton.jit(do_not_specialize=["N"], do_not_specialize_on_alignment=["x_ptr", "y_ptr"])
def gelu_forward(x_ptr, y_ptr, N: tl.int64, BY_TANH: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    """y = round((x * 0.5) * (1 + e)), e = erf(x / sqrt 2), or tanh(sqrt(2/pi) * (x + 0.044715 x^3))."""
    offsets, inside = elements_of(N, BLOCK, ALIGNED)
    x = load_elements(x_ptr, offsets, inside, ALIGNED)
    e = tanh_of(x) if BY_TANH else erf(x * ROOT_HALF)
    store_elements(y_ptr, offsets, (x * 0.5) * (e + 1.0), inside, ALIGNED)


@triton.jit(do_not_specialize=["N"], do_not_specialize_on_alignment=["dy_ptr", "x_ptr", "dx_ptr"])
def gelu_backward(
    dy_ptr, x_ptr, dx_ptr, N: tl.int64, BY_TANH: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr
):
    """dx = round(dy * slope), the slope of the above."""
    offsets, inside = elements_of(N, BLOCK, ALIGNED)
    dy = load_elements(dy_ptr, offsets, inside, ALIGNED)
    x = load_elements(x_ptr, offsets, inside, ALIGNED)
    one = tl.full((BLOCK,), 1.0, tl.float32)
    if BY_TANH:
        t = tanh_of(x)
        steep = tl.fma(x * x, tl.full((BLOCK,), CUBIC_SLOPE, tl.float32), one) * ROOT_TWO_OVER_PI
        slope = tl.fma((x * 0.5) * tl.fma(t * -1.0, t, one), steep, (t + 1.0) * 0.5)
    else:
        density = exp((x * -0.5) * x) * DENSITY
        slope = tl.fma(x, density, (erf(x * ROOT_HALF) + 1.0) * 0.5)
    store_elements(dx_ptr, offsets, dy * slope, inside, ALIGNED)


def forward(x: Tensor, by_tanh: bool) -> Tensor:
    """y = (x * 0.5) * (1 + e), e the error function or tanh."""
    return run_elements(gelu_forward, x, BY_TANH=by_tanh)[0]


def backward(dy: Tensor, x: Tensor, by_tanh: bool) -> Tensor:
    """The gradient of x."""
    return run_elements(gelu_backward, dy, x, BY_TANH=by_tanh)[0]
