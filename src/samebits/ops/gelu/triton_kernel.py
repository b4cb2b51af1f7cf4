"""GELU by Triton: one pass over the elements; the backward pass recomputes what it needs instead of storing it.

Knows nothing of autograd, validation or empty tensors; the public function does. Block and warps decide speed alone.

Forward, a bfloat16 takes formulas of its own, of half the instructions. There are 65,536 of it, and of a result eight
bits are kept, which what these formulas round otherwise than the reference does not reach: all are tried, by Triton's
interpreter in tests/ops/test_halves.py and on a GPU by benchmarks/gpu_rows.py. The one approximate instruction is the
power of two, good to 2^-22; the tests take it as far off as 2^-21, both ways, and no result changes."""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from samebits.numerics.elementary.triton_generated import erf, tanh
from samebits.ops._triton.elements import elements_of, run_elements, store_elements
from samebits.ops._triton.halves import at_most, exp_of_minus_square, inverse_of_one_more, load_widened
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


@triton.jit
def half_of_one_more(e, x):
    """(1 + e) / 2, e with the sign of x."""
    signed = e.to(tl.uint32, bitcast=True) | (x.to(tl.uint32, bitcast=True) & 0x80000000)
    return tl.fma(signed.to(tl.float32, bitcast=True), 0.5, 0.5)


@triton.jit
def of_bfloat16_by_erf(x):
    """x (1 + erf(x / sqrt 2)) / 2: 1 - erf of the magnitude is a power of two, its exponent a polynomial.

    From 5.66 on erf is 1 to the last bit of float32."""
    a = at_most(tl.abs(x), 5.66)
    slope = tl.fma(a, 1.656404577943249e-07, -3.988736807514215e-06)
    slope = tl.fma(slope, a, 3.8196212699403986e-05)
    slope = tl.fma(slope, a, -0.00015523152251262218)
    slope = tl.fma(slope, a, -0.0002451359760016203)
    slope = tl.fma(slope, a, 0.007233391050249338)
    slope = tl.fma(slope, a, -0.05262729525566101)
    slope = tl.fma(slope, a, -0.4591626226902008)
    slope = tl.fma(slope, a, -1.1511104106903076)
    return x * half_of_one_more(1.0 - tl.exp2(slope * a), x)


@triton.jit
def of_bfloat16_by_tanh(x):
    """x (1 + tanh(v)) / 2, v = sqrt(2/pi) (x + 0.044715 x^3): of |v| it is 1 - 2 t / (1 + t), t = e^(-2 |v|).

    v is never computed: its constants are those of log2(t)."""
    exponent = tl.fma(x * x, -0.10294324159622192, -2.302208185195923) * tl.abs(x)
    t = tl.exp2(exponent)
    return x * half_of_one_more(tl.fma(t * inverse_of_one_more(t), -2.0, 1.0), x)


@triton.jit(do_not_specialize=["N"], do_not_specialize_on_alignment=["x_ptr", "y_ptr"])
def gelu_forward(x_ptr, y_ptr, N: tl.int64, BY_TANH: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    """y = round((x * 0.5) * (1 + e)), e = erf(x / sqrt 2), or tanh(sqrt(2/pi) * (x + 0.044715 x^3))."""
    offsets, inside = elements_of(N, BLOCK, ALIGNED)
    x = load_widened(x_ptr, offsets, inside, ALIGNED)
    if x_ptr.dtype.element_ty == tl.bfloat16:
        y = of_bfloat16_by_tanh(x) if BY_TANH else of_bfloat16_by_erf(x)
    else:
        e = tanh_of(x) if BY_TANH else erf(x * ROOT_HALF)
        y = (x * 0.5) * (e + 1.0)
    store_elements(y_ptr, offsets, y, inside, ALIGNED)


@triton.jit(do_not_specialize=["N"], do_not_specialize_on_alignment=["dy_ptr", "x_ptr", "dx_ptr"])
def gelu_backward(
    dy_ptr, x_ptr, dx_ptr, N: tl.int64, BY_TANH: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr
):
    """dx = round(dy * slope), the slope of the above."""
    offsets, inside = elements_of(N, BLOCK, ALIGNED)
    dy = load_widened(dy_ptr, offsets, inside, ALIGNED)
    x = load_widened(x_ptr, offsets, inside, ALIGNED)
    one = tl.full((BLOCK,), 1.0, tl.float32)
    if BY_TANH:
        t = tanh_of(x)
        steep = tl.fma(x * x, tl.full((BLOCK,), CUBIC_SLOPE, tl.float32), one) * ROOT_TWO_OVER_PI
        slope = tl.fma((x * 0.5) * tl.fma(t * -1.0, t, one), steep, (t + 1.0) * 0.5)
    else:
        density = exp_of_minus_square(x, x_ptr.dtype.element_ty) * DENSITY
        slope = tl.fma(x, density, (erf(x * ROOT_HALF) + 1.0) * 0.5)
    store_elements(dx_ptr, offsets, dy * slope, inside, ALIGNED)


def forward(x: Tensor, by_tanh: bool) -> Tensor:
    """y = (x * 0.5) * (1 + e), e the error function or tanh."""
    return run_elements(gelu_forward, x, BY_TANH=by_tanh)[0]


def backward(dy: Tensor, x: Tensor, by_tanh: bool) -> Tensor:
    """The gradient of x."""
    return run_elements(gelu_backward, dy, x, BY_TANH=by_tanh)[0]
