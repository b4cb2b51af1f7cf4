"""The exponential of what is not above zero, in fewer instructions than the generated one has: the same bits.

The generated function scales twice by half of an exponent, since it may be large either way, and asks apart for a NaN.
Here the exponent is 0 to -150: 64 more of it is a normal number's, and the way back rounds once, as there. Of every
input: tests/ops/test_exponential.py on the CPU, tests/gpu/test_elementary.py on a GPU. Knows no operator."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def exp_up_to_zero(x):
    """e to the power x, which is at most 0, or a NaN."""
    # From -104 down the result is +0. A NaN goes through every step.
    near = tl.maximum(x, -104.0, propagate_nan=tl.PropagateNan.ALL)
    rounded = tl.fma(near, 1.4426950216293335, 12582912.0)
    whole = rounded - 12582912.0
    partly = tl.fma(whole, -0.693145751953125, near)
    rest = tl.fma(whole, -1.428606765330187e-06, partly)
    high = rest + 1.0
    lost = (1.0 - high) + rest
    series = tl.fma(0.001382013550028205, rest, 0.008368685841560364)
    series = tl.fma(series, rest, 0.04166827350854874)
    series = tl.fma(series, rest, 0.1666652113199234)
    series = tl.fma(series, rest, 0.4999999403953552)
    power = high + tl.fma(rest * rest, series, lost)
    # The lower bits of the rounded number are the exponent; the bias of float32, and 64.
    scale = (rounded.to(tl.int32, bitcast=True) << 23) + ((127 + 64) << 23)
    return (power * scale.to(tl.float32, bitcast=True)) * 5.421010862427522e-20
