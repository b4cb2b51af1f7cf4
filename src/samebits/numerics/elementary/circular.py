"""Sine and cosine of any float32: exact reduction by multiples of pi/2 in integers, then a polynomial.

Knows neither C++ nor Triton nor numpy arrays. Every constant here decides bits; polynomials come from `fit.py`."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from samebits.numerics.elementary.pieces import (
    INFINITY,
    NAN_BITS,
    SIGN_BIT,
    floats,
    magnitude,
    number,
    polynomial,
    unsigned,
)
from samebits.numerics.elementary.program import (
    Value,
    as_signed,
    fma,
    from_bits,
    multiply_high,
    rounded_product,
    select,
    to_bits,
    to_float,
)

SIN: Final = floats("-0x1.555556p-3 0x1.111176p-7 -0x1.a05bbcp-13 0x1.7cd93ap-19")
COS: Final = floats("0x1.55554ap-5 -0x1.6c0c1ap-10 0x1.99e0ecp-16")
# HALF_PI is pi/2 in units of 2^-24, the unit of the reduced argument below.
(QUARTER_PI,) = floats("0x1.921fb6p-1")
HALF_PI, HALF_PI_REST = floats("0x1.921fb6p-24 -0x1.777a5cp-49")
# 2/pi behind 26 zero bits; the window of argument m * 2^(e-23) begins at bit e + 1.
TWO_OVER_PI: Final = (0x00000028, 0xBE60DB93, 0x91054A7F, 0x09D5F47D, 0x4D377036, 0xD8A5664F, 0x10E4107F, 0x9458EAF7)


def window_of_two_over_pi(position: Value) -> list[Value]:
    """The 96 bits of 2/pi that begin at `position` (0..159), as three words."""
    row, shift = position >> 5, position & 31
    words = []
    for first in range(4):
        word = unsigned(position, TWO_OVER_PI[first + 4])
        for index in (3, 2, 1, 0):
            word = select(row.equals(index), unsigned(position, TWO_OVER_PI[first + index]), word)
        words.append(word)
    # Shifting right by one and then by 31 - shift keeps both amounts in 0..31.
    return [(high << shift) | ((low >> 1) >> ((shift ^ 31) & 31)) for high, low in pairwise(words)]


def quadrant_and_angle(a: Value) -> tuple[Value, Value, Value]:
    """(q, r, rest) with a = q * pi/2 + r + rest (mod 2 pi) and |r| <= pi/4, for any finite a >= 0.

    Payne and Hanek's reduction in integers: the mantissa times the 96 bits of 2/pi that matter leaves two bits of
    quadrant and 62 of fraction. No float32 lies nearer than 2^-30 quadrants to a multiple of pi/2."""
    bits = to_bits(a)
    mantissa = (bits & 0x7FFFFF) | 0x800000
    high, middle, low = window_of_two_over_pi((bits >> 23) - 126)
    lower_sum = middle * mantissa + multiply_high(low, mantissa)
    carry = select(lower_sum < middle * mantissa, unsigned(a, 1), 0)
    upper_sum = high * mantissa + multiply_high(middle, mantissa) + carry
    fraction, fraction_low = (upper_sum << 2) | (lower_sum >> 30), lower_sum << 2
    quadrant = (upper_sum >> 30) + (fraction >> 31)
    # The fraction as a signed number of 64 bits, cut into 24 + 24 + 16 bits, each exact in float32.
    top = to_float(as_signed(fraction) >> 8)
    centre = to_float(as_signed(((fraction & 0xFF) << 16) | (fraction_low >> 16)))
    bottom = to_float(as_signed(fraction_low & 0xFFFF))
    unit = float.fromhex("0x1p-24")
    turn = fma(centre, unit, top)
    turn_rest = fma(bottom, float.fromhex("0x1p-40"), fma(centre, unit, top - turn))
    r = rounded_product(turn, HALF_PI)
    rest = fma(turn_rest, HALF_PI, fma(turn, HALF_PI_REST, fma(turn, HALF_PI, -r)))
    inside = a < QUARTER_PI
    return select(inside, unsigned(a, 0), quadrant), select(inside, a, r), select(inside, number(a, 0.0), rest)


def circular(x: Value, turned: Value, quadrant: Value, r: Value, rest: Value) -> Value:
    """sin(quadrant * pi/2 + r + rest), its sign turned where `turned` has the sign bit."""
    z = r * r
    z_lost = fma(r, r, -z)
    cosine_whole = fma(z, -0.5, 1.0)
    cosine_lost = fma(z, -0.5, 1.0 - cosine_whole)
    cosine_rest = fma(r, -rest, fma(z_lost, -0.5, cosine_lost))
    cosine = cosine_whole + fma(z * z, polynomial(z, COS), cosine_rest)
    sine = r + fma(r * z, polynomial(z, SIN), rounded_product(rest, cosine_whole))
    result = select((quadrant & 1).equals(0), sine, cosine)
    sign = turned ^ ((quadrant << 30) & SIGN_BIT)
    finite = magnitude(x) < INFINITY
    return from_bits(select(finite, to_bits(result) ^ sign, NAN_BITS))


def sin(x: Value) -> Value:
    """Sine, of any float32: large arguments are reduced exactly."""
    quadrant, r, rest = quadrant_and_angle(magnitude(x))
    return circular(x, to_bits(x) & SIGN_BIT, quadrant, r, rest)


def cos(x: Value) -> Value:
    """Cosine, of any float32: large arguments are reduced exactly."""
    quadrant, r, rest = quadrant_and_angle(magnitude(x))
    return circular(x, unsigned(x, 0), quadrant + 1, r, rest)
