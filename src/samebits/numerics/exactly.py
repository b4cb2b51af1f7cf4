"""Functions of one Python float, rounded once: what the C library's own give differs from machine to machine.

Computed to sixty decimal digits and rounded to float64 at the end. For numbers that are made once a step or once a
model, not once an element. Roots need nothing of the kind: `math.sqrt` is correctly rounded wherever IEEE 754 is."""

from __future__ import annotations

import math
from decimal import Context, Decimal, localcontext
from functools import cache, lru_cache
from typing import Final

DIGITS: Final = Context(prec=60)
PI: Final = Decimal("3.14159265358979323846264338327950288419716939937510582097494")
# The largest angle of `cosine` and `sine`: the series loses no digit that counts up to here.
LARGEST_ANGLE: Final = 4.0


# A schedule is asked for again and again, by all that is checked about it.
@lru_cache(maxsize=1 << 16)
def cosine(angle: float) -> float:
    """cos of an angle in radians, for magnitudes up to 4."""
    _check("cosine", "angle", angle, LARGEST_ANGLE)
    with localcontext(DIGITS):
        return float(_series(Decimal(angle), 0))


def sine(angle: float) -> float:
    """sin of an angle in radians, for magnitudes up to 4."""
    _check("sine", "angle", angle, LARGEST_ANGLE)
    with localcontext(DIGITS):
        return float(_series(Decimal(angle), 1))


def arc_cosine(x: float) -> float:
    """The angle in 0 to pi whose cosine is x, for x in -1 to 1."""
    _check("arc_cosine", "x", x, 1.0)
    with localcontext(DIGITS):
        # By half the angle or half of what it lacks to pi, whose sine is at most 0.71: there Newton's steps are safe.
        wanted = ((1 - abs(Decimal(x))) / 2).sqrt()
        half = Decimal(math.asin(float(wanted)))
        # From fourteen digits or more, each step doubles them: where they began leaves no trace.
        for _ in range(3):
            half -= (_series(half, 1) - wanted) / _series(half, 0)
        return float(2 * half if x >= 0 else PI - 2 * half)


def _check(function: str, name: str, value: float, largest: float) -> None:
    if not abs(value) <= largest:
        raise ValueError(f"{function}: {name} is {value}; allowed: -{largest} to {largest}")


def _series(angle: Decimal, number: int) -> Decimal:
    """The cosine (number 0) or the sine (number 1): every other term of the exponential's series, signs in turn."""
    square = angle**2
    term = angle if number else Decimal(1)
    total = term
    # The terms fall faster than a power of ten from the tenth on; a small sine keeps its digits too.
    while abs(term) > abs(total) * Decimal("1e-52"):
        number += 2
        term = -term * square / (number * (number - 1))
        total += term
    return total


@cache
def inverse_root(number: int) -> float:
    """1 / sqrt(number), rounded once; a quotient of a rounded root would be rounded twice."""
    if number < 1:
        raise ValueError(f"inverse_root: number is {number}; allowed: at least 1")
    with localcontext(DIGITS):
        return float(1 / Decimal(number).sqrt())
