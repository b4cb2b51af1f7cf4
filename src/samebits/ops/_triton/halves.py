"""Elementary functions of numbers that 16 bits hold, in fewer instructions than any float32 takes, and the same bits.

The generated functions serve all 2^32 numbers. Of bfloat16 and of float16 there are 65,536 each, and all are compared:
by Triton's interpreter in tests/ops/test_halves.py, on a GPU by benchmarks/gpu_rows.py. No instruction here is
approximate. Of a NaN some number comes: every caller multiplies by the NaN itself."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.numerics.elementary import triton_generated as generated
from samebits.ops._triton.elements import element_pointers


@triton.jit
def load_widened(ptr, offsets, inside, ALIGNED: tl.constexpr):
    """`load_elements`, for kernels that instructions limit: a bfloat16 becomes a float32 by a shift.

    That is one instruction an element. The compiler's own conversion moves every second one down first."""
    x = tl.load(element_pointers(ptr, offsets, ALIGNED), mask=inside, other=0.0)
    if ptr.dtype.element_ty == tl.bfloat16:
        y = (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        y = x.to(tl.float32)
    return y


@triton.jit
def at_most(a, most):
    """The lesser of a number that is not negative and a constant; `most` for a NaN.

    That a zero is +0 the compiler sees by itself, and makes nothing of the magnitude; a tracer is told."""
    return tl.abs(tl.minimum(a, most))


@triton.jit
def exp_of_minus(a):
    """e to the power -a, a at least 0: the generated steps, but one scaling instead of two by halves of the exponent.

    The sum that rounds has 64 more in it than the generated one: the exponent is then a normal number's, and one shift
    adds it. The way back rounds once, as there."""
    near = at_most(a, 104.0) * -1.0
    rounded = tl.fma(near, 1.4426950216293335, 12582976.0)
    whole = rounded - 12582976.0
    rest = tl.fma(whole, -1.428606765330187e-06, tl.fma(whole, -0.693145751953125, near))
    high = rest + 1.0
    lost = (1.0 - high) + rest
    series = tl.fma(0.001382013550028205, rest, 0.008368685841560364)
    series = tl.fma(series, rest, 0.04166827350854874)
    series = tl.fma(series, rest, 0.1666652113199234)
    series = tl.fma(series, rest, 0.4999999403953552)
    power = high + tl.fma(rest * rest, series, lost)
    # The shift leaves of the rounded number nothing but the exponent.
    scaled = power.to(tl.int32, bitcast=True) + (rounded.to(tl.int32, bitcast=True) << 23)
    return scaled.to(tl.float32, bitcast=True) * 5.421010862427522e-20


@triton.jit
def inverse_of_one_more(t):
    """1 / (1 + t) for t in 0..1, good to 2^-18 and exact at 1: a parabola within 1.3 %, and a step that cubes that."""
    whole = t + 1.0
    near = tl.fma(tl.fma(t, 0.3075, -0.7975), t, 0.99)
    error = tl.fma(whole * -1.0, near, 1.0)
    return tl.fma(near, tl.fma(error, error, error), near)


@triton.jit
def sigmoid_of_half(x):
    """1 / (1 + exp(-x)): the generated quotient by a coarser inverse, which its last step corrects.

    The remainder is n - q - t q, without 1 + t and what that loses, for n - q is exact unless q is just below n / 2."""
    t = exp_of_minus(tl.abs(x))
    minus_inverse = inverse_of_one_more(t) * -1.0
    numerator = tl.where(x < 0.0, t, 1.0)
    quotient = numerator * (minus_inverse * -1.0)
    minus_remainder = tl.fma(t, quotient, quotient - numerator)
    return tl.fma(minus_remainder, minus_inverse, quotient)


@triton.jit
def sigmoid(x, dtype: tl.constexpr):
    """The sigmoid of float32 numbers that were read as `dtype`."""
    return generated.sigmoid(x) if dtype == tl.float32 else sigmoid_of_half(x)


@triton.jit
def exp_of_minus_square(x, dtype: tl.constexpr):
    """e to the power -x^2 / 2, of float32 numbers that were read as `dtype`."""
    return generated.exp((x * -0.5) * x) if dtype == tl.float32 else exp_of_minus((x * 0.5) * x)
