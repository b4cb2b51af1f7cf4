"""Functions of one Python float, rounded once: what the C library's own give differs from machine to machine.

Computed to fifty decimal digits and rounded to float64 at the end. For numbers that are made once a step or once a
model, not once an element. Roots need nothing of the kind: `math.sqrt` is correctly rounded wherever IEEE 754 is."""

from __future__ import annotations

from decimal import Context, Decimal, localcontext
from functools import cache
from typing import Final

DIGITS: Final = Context(prec=50)
# The largest angle of `cosine`: the series loses no digit that counts up to here.
LARGEST_ANGLE: Final = 4.0


def cosine(angle: float) -> float:
    """cos of an angle in radians, for magnitudes up to 4."""
    if not abs(angle) <= LARGEST_ANGLE:
        raise ValueError(f"cosine: angle is {angle}; allowed: -{LARGEST_ANGLE} to {LARGEST_ANGLE}")
    with localcontext(DIGITS):
        square, term, total, number = Decimal(angle) ** 2, Decimal(1), Decimal(1), 0
        # The terms fall faster than a power of ten from the tenth on.
        while abs(term) > Decimal("1e-48"):
            number += 2
            term = -term * square / (number * (number - 1))
            total += term
        return float(total)


@cache
def inverse_root(number: int) -> float:
    """1 / sqrt(number), rounded once; a quotient of a rounded root would be rounded twice."""
    if number < 1:
        raise ValueError(f"inverse_root: number is {number}; allowed: at least 1")
    with localcontext(DIGITS):
        return float(1 / Decimal(number).sqrt())
