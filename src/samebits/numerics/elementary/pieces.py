"""Pieces that several elementary functions are built from: constants, polynomials, sign and range.

Knows no function."""

from __future__ import annotations

from typing import Final

from samebits.numerics.elementary.program import Kind, Value, fma, from_bits, select, to_bits

NAN_BITS: Final = 0x7FC00000
INFINITY_BITS: Final = 0x7F800000
SIGN_BIT: Final = 0x80000000
INFINITY: Final = float("inf")


def floats(text: str) -> tuple[float, ...]:
    """The numbers of a line of hexadecimal floats."""
    return tuple(float.fromhex(part) for part in text.split())


def unsigned(like: Value, number: int) -> Value:
    return like.program.constant(Kind.UNSIGNED, number)


def number(like: Value, value: float) -> Value:
    return like.program.constant(Kind.FLOAT, value)


def polynomial(x: Value, coefficients: tuple[float, ...]) -> Value:
    """Horner's scheme, one fma a coefficient."""
    result = number(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = fma(result, x, coefficient)
    return result


def magnitude(x: Value) -> Value:
    return from_bits(to_bits(x) & 0x7FFFFFFF)


def nan_where_nan(x: Value, result: Value) -> Value:
    return from_bits(select(x.equals(x), to_bits(result), NAN_BITS))


def clamp(x: Value, low: float, high: float) -> Value:
    """Into low..high; a NaN passes."""
    bounded = select(x < low, number(x, low), x)
    return select(number(x, high) < bounded, number(x, high), bounded)
