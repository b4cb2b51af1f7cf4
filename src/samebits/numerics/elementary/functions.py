"""The elementary functions, each written once as a sequence of operations: all but sin and cos, and the list of all.

Knows neither C++ nor Triton nor numpy arrays. Every constant here decides bits. Polynomials are quoted from `fit.py`,
lowest degree first; split constants (high, low) are the leading and the following bits of the true number.

Common to all: the input may be any float32, subnormals included; a NaN result is always 0x7fc00000."""

from __future__ import annotations

from typing import Final

from samebits.numerics.elementary.circular import cos, sin
from samebits.numerics.elementary.pieces import (
    INFINITY,
    INFINITY_BITS,
    NAN_BITS,
    SIGN_BIT,
    clamp,
    floats,
    magnitude,
    nan_where_nan,
    number,
    polynomial,
    unsigned,
)
from samebits.numerics.elementary.program import (
    Kind,
    Value,
    as_signed,
    as_unsigned,
    fma,
    from_bits,
    multiply_high,
    rounded_product,
    select,
    to_bits,
    to_float,
    trace,
)

EXP: Final = floats("0x1.fffffcp-2 0x1.555492p-3 0x1.5558b4p-5 0x1.1239a0p-7 0x1.6a495cp-10")
EXP2: Final = floats("0x1.ebfbdcp-3 0x1.c6af8ap-5 0x1.3b2deap-7 0x1.5f02fep-10 0x1.416024p-13")
LOG: Final = floats(
    "0x1.555548p-2 -0x1.000006p-2 0x1.99a476p-3 -0x1.555c46p-3 0x1.233ba8p-3 "
    "-0x1.fc2884p-4 0x1.e6bf38p-4 -0x1.de02d6p-4 0x1.14763ap-4"
)
TANH: Final = floats(
    "-0x1.55553cp-2 0x1.110be6p-3 -0x1.b96288p-5 0x1.600bd8p-6 -0x1.046760p-7 0x1.2db7f2p-9 -0x1.7807f8p-12"
)
ERF: Final = floats(
    "-0x1.1ae14cp-5 -0x1.1fd164p-2 0x1.45432ap-4 -0x1.2b8dfap-6 0x1.c879c4p-9 -0x1.2856cap-11 0x1.306414p-14"
)
LOG2_ERFC: Final = floats("-0x1.ae134ap+1 -0x1.2e00bcp+0 -0x1.24b4c8p-4 0x1.141f5cp-6 -0x1.7faa16p-9 0x1.17443cp-12")
POWER: Final = floats("0x1.000002p+0 0x1.62e432p-1 0x1.ebf862p-3 0x1.c6adbep-5 0x1.3d3780p-7 0x1.5fb03cp-10")

(LOG2_E,) = floats("0x1.715476p+0")
# 16 bits in the high part: n * LN2_HIGH is exact for |n| < 2^8.
LN2_HIGH, LN2_LOW = floats("0x1.62e4p-1 0x1.7f7d1cp-20")
LN2, LN2_REST = floats("0x1.62e430p-1 -0x1.05c610p-29")

# erf: below the split a polynomial in x^2 - middle; above it 1 - 2^(-2 + polynomial in x - centre), from 4 on 1.
ERF_SPLIT: Final = 1.09375
ERF_MIDDLE: Final = 0.5
ERFC_CENTRE: Final = float.fromhex("0x1.a0788p-1")
ERF_IS_ONE: Final = 4.0

# Adding 1.5 * 2^23 rounds a small number to an integer, which then is in the low bits of the sum.
ROUNDER: Final = 12582912.0
ROUNDER_BITS: Final = 0x4B400000


def power_of_two(n: Value) -> Value:
    """2^n for a signed integer in -126..127."""
    return from_bits(as_unsigned(n + 127) << 23)


def scaled(p: Value, n: Value) -> Value:
    """p * 2^n in two steps, as 2^n alone may leave the range; the second may round into the subnormals."""
    half = n >> 1
    return rounded_product(p * power_of_two(half), power_of_two(n - half))


def exp_parts(x: Value) -> tuple[Value, Value]:
    """(p, n) with exp(x) = p * 2^n and p in about 0.7..1.42; x between -104 and 89."""
    rounded = fma(x, LOG2_E, ROUNDER)
    n = rounded - ROUNDER
    r = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x))
    whole = r + 1.0
    lost = (1.0 - whole) + r
    p = whole + fma(r * r, polynomial(r, EXP), lost)
    return p, as_signed(to_bits(rounded) - ROUNDER_BITS)


def exp(x: Value) -> Value:
    """e to the power x."""
    p, n = exp_parts(clamp(x, -104.0, 89.0))
    return nan_where_nan(x, scaled(p, n))


def exp2(x: Value) -> Value:
    """2 to the power x."""
    bounded = clamp(x, -151.0, 129.0)
    rounded = bounded + ROUNDER
    r = bounded - (rounded - ROUNDER)
    whole = fma(r, LN2, 1.0)
    lost = fma(r, LN2, 1.0 - whole)
    p = whole + fma(r, fma(r, polynomial(r, EXP2), LN2_REST), lost)
    return nan_where_nan(x, scaled(p, as_signed(to_bits(rounded) - ROUNDER_BITS)))


def log(x: Value) -> Value:
    """Natural logarithm; log(+-0) = -inf, negative numbers give NaN."""
    subnormal = x < float.fromhex("0x1p-126")
    positive = to_bits(select(subnormal, rounded_product(x, float.fromhex("0x1p23")), x))
    # x = m * 2^e with m in sqrt(1/2)..sqrt(2); 0x3f3504f3 is sqrt(1/2).
    exponent = as_signed(positive - 0x3F3504F3) >> 23
    f = from_bits(positive - as_unsigned(exponent << 23)) - 1.0
    e = to_float(select(subnormal, exponent - 23, exponent))
    whole = fma(e, LN2_HIGH, f)
    lost = f - fma(e, -LN2_HIGH, whole)
    rest = fma(f * f, fma(f, polynomial(f, LOG), -0.5), fma(e, LN2_LOW, lost))
    special = select(
        x.equals(0.0), unsigned(x, 0xFF800000), select(x.equals(INFINITY), unsigned(x, INFINITY_BITS), NAN_BITS)
    )
    ordinary = (number(x, 0.0) < x) & (x < INFINITY)
    return from_bits(select(ordinary, to_bits(whole + rest), special))


def rsqrt(x: Value) -> Value:
    """1 / sqrt(x); rsqrt(+-0) = +-inf, negative numbers give NaN."""
    subnormal = x < float.fromhex("0x1p-126")
    a = select(subnormal, rounded_product(x, float.fromhex("0x1p24")), x)
    # Half the exponent, negated, by one integer subtraction: within 3.5 % of the result.
    start = from_bits(0x5F3759DF - (to_bits(a) >> 1))
    error = fma(-(a * start), start, 1.0)
    near = fma(start * error, fma(error, 0.375, 0.5), start)
    # The second step knows a * near to twice the precision, so that only its last rounding counts.
    high = a * near
    low = fma(a, near, -high)
    error = fma(-low, near, fma(-high, near, 1.0))
    root = fma(near * error, fma(error, 0.375, 0.5), near)
    result = rounded_product(root, select(subnormal, number(x, 4096.0), 1.0))
    sign = to_bits(x) & SIGN_BIT
    special = select(x.equals(0.0), sign | INFINITY_BITS, select(x.equals(INFINITY), unsigned(x, 0), NAN_BITS))
    ordinary = (number(x, 0.0) < x) & (x < INFINITY)
    return from_bits(select(ordinary, to_bits(result), special))


def reciprocal(d: Value) -> Value:
    """1 / d for a normal d well inside the range, good to little more than its last rounding.

    The integer subtraction is within 13 %; each step cubes the error."""
    result = from_bits(0x7EF311C7 - to_bits(d))
    for _ in range(2):
        error = fma(-d, result, 1.0)
        result = fma(result, fma(error, error, error), result)
    return result


def sigmoid(x: Value) -> Value:
    """1 / (1 + exp(-x)), by t = exp(-|x|): 1 / (1 + t) or t / (1 + t)."""
    p, n = exp_parts(clamp(-magnitude(x), -104.0, 0.0))
    t = scaled(p, n)
    whole = t + 1.0
    lost = (1.0 - whole) + t
    inverse = reciprocal(whole)
    numerator = select(x < 0.0, t, 1.0)
    quotient = numerator * inverse
    remainder = fma(-lost, quotient, fma(-whole, quotient, numerator))
    return nan_where_nan(x, fma(remainder, inverse, quotient))


def tanh(x: Value) -> Value:
    """Hyperbolic tangent."""
    a = magnitude(x)
    z = a * a
    small = fma(a * z, polynomial(z, TANH), a)
    bounded = clamp(a, 0.0, 10.0)
    p, n = exp_parts(bounded + bounded)
    large = fma(reciprocal(fma(p, power_of_two(n), 1.0)), -2.0, 1.0)
    result = select(a < 1.0, small, large)
    return nan_where_nan(x, from_bits(to_bits(result) | (to_bits(x) & SIGN_BIT)))


def erf(x: Value) -> Value:
    """Error function."""
    a = magnitude(x)
    small = fma(a, polynomial(fma(a, a, -ERF_MIDDLE), ERF), a)
    t = select(number(x, ERF_IS_ONE) < a, number(x, ERF_IS_ONE), a) - ERFC_CENTRE
    slope = polynomial(t, LOG2_ERFC)
    # slope * t - 2 is log2(erfc): its nearest integer, and exactly what is left beside that.
    rounded = fma(slope, t, ROUNDER - 2.0)
    p = polynomial(fma(slope, t, (ROUNDER - 2.0) - rounded), POWER)
    # The shift leaves of `rounded` nothing but the integer, here in -26..-3, as an exponent to be added to that of p.
    large = 1.0 - from_bits(to_bits(p) + (to_bits(rounded) << 23))
    result = select(a < ERF_SPLIT, small, large)
    return nan_where_nan(x, from_bits(to_bits(result) | (to_bits(x) & SIGN_BIT)))


def philox(c0: Value, c1: Value, c2: Value, c3: Value, k0: Value, k1: Value) -> tuple[Value, ...]:
    """Philox4x32-10: four random words from a counter of four words and a key of two."""
    for _ in range(10):
        high_0, high_1 = multiply_high(c0, 0xD2511F53), multiply_high(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high_1 ^ c1 ^ k0, c2 * 0xCD9E8D57, high_0 ^ c3 ^ k1, c0 * 0xD2511F53
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    return c0, c1, c2, c3


DEFINITIONS: Final = (exp, exp2, log, rsqrt, sin, cos, tanh, erf, sigmoid)
PROGRAMS: Final = {each.__name__: trace(each.__name__, each, [Kind.FLOAT], ["x"]) for each in DEFINITIONS}
PHILOX: Final = trace("philox", philox, [Kind.UNSIGNED] * 6, ["c0", "c1", "c2", "c3", "k0", "k1"])
