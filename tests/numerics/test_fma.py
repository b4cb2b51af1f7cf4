"""fma: one rounding, against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from samebits.numerics.bits import same_bits
from samebits.numerics.fma import fma32
from samebits.numerics.recipes import make


def nearest32(exact: Fraction) -> float:
    """The nearest float32, ties to even, by integers."""
    if exact == 0:
        return 0.0
    size = abs(exact)
    exponent = max(size.numerator.bit_length() - size.denominator.bit_length() - 25, -149)
    while size / Fraction(2) ** exponent >= 2**24:
        exponent += 1
    steps = round(size / Fraction(2) ** exponent)  # Python rounds halves to even
    value = float(steps * Fraction(2) ** exponent)
    return math.copysign(value if value < 2.0**128 else math.inf, exact)


@pytest.mark.parametrize("recipe", ["normal", "wide", "subnormal", "random_bits"])
def test_fma_is_the_rounded_exact_value(recipe: str) -> None:
    a, b, c = (make(recipe, (2000,), seed) for seed in range(3))
    # Half the addends nearly cancel the product, where a second rounding would show.
    with np.errstate(all="ignore"):
        c[::2] = -(a * b)[::2]
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    a, b, c = a[finite], b[finite], c[finite]
    exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)]
    expected = np.array([nearest32(value) for value in exact], np.float32)
    result = fma32(a, b, c)
    nonzero = expected != 0  # the sign of an exact zero is IEEE's business, below
    assert len(a) > 400 and same_bits(result[nonzero], expected[nonzero]) and not result[[v == 0 for v in exact]].any()


def test_a_second_rounding_is_noticed() -> None:
    """Planted fault: float64 rounds the sum onto a tie, which float32 breaks upwards; exactly it lies below the tie."""
    a, b, c = np.float32([2.0**-24 * (1 + 2**-23)]), np.float32([1 - 2**-23]), np.float32([1 + 2**-23])
    twice = (a.astype(np.float64) * b + c).astype(np.float32)
    assert twice.tolist() == [1 + 2**-22] and fma32(a, b, c).tolist() == [1 + 2**-23]


def test_specials_follow_ieee() -> None:
    inf, nan = np.inf, np.nan
    a, b = np.float32([0.0, -0.0, inf, inf, 1, nan]), np.float32([1, 1, 0, 1, 1, 1])
    c = np.float32([-0.0, -0.0, 1, -inf, -1, 1])
    assert same_bits(fma32(a, b, c), np.float32([0.0, -0.0, nan, nan, 0.0, nan]))
