"""Numbers that a C library would round its own way, against sums of fractions, which round nothing."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from samebits.numerics.exactly import arc_cosine, cosine, inverse_root, sine


def exact_cosine(angle: float) -> float:
    """The series in fractions; float() of a fraction is the nearest float."""
    square, term, total = Fraction(angle) ** 2, Fraction(1), Fraction(1)
    for number in range(2, 80, 2):
        term *= -square / (number * (number - 1))
        total += term
    return float(total)


@pytest.mark.parametrize("steps", [2, 3, 7, 96, 331])
def test_the_cosine_is_rounded_once(steps: int) -> None:
    angles = [math.pi * step / steps for step in range(1, steps + 1, max(1, steps // 20))]
    assert [cosine(angle) for angle in angles] == [exact_cosine(angle) for angle in angles]
    assert cosine(0.0) == 1.0 and cosine(-1.0) == cosine(1.0) == 0.5403023058681398


@pytest.mark.parametrize("angle", [4.5, -5.0, math.inf, math.nan])
def test_an_angle_beyond_the_series_is_refused(angle: float) -> None:
    with pytest.raises(ValueError, match=r"cosine: angle is .*; allowed: -4.0 to 4.0"):
        cosine(angle)


def exact_sine(angle: float) -> Fraction:
    square, term, total = Fraction(angle) ** 2, Fraction(angle), Fraction(angle)
    for number in range(3, 80, 2):
        term *= -square / (number * (number - 1))
        total += term
    return total


def test_the_sine_is_rounded_once() -> None:
    angles = [0.0, 1e-300, 1e-9, *(math.pi * step / 40 for step in range(1, 41)), -1.0, 4.0]
    assert [sine(angle) for angle in angles] == [float(exact_sine(angle)) for angle in angles]
    with pytest.raises(ValueError, match=r"sine: angle is 4.5; allowed: -4.0 to 4.0"):
        sine(4.5)


def test_the_arc_cosine_is_rounded_once() -> None:
    """y is nearest to acos(x): the cosines of both midpoints beside y lie on both sides of x."""
    near_one = [1 - 2.0**-power for power in range(1, 54, 3)]
    for x in (0.5, 0.9995, -0.3, 0.1, 1e-17, *near_one, *(-each for each in near_one)):
        angle = arc_cosine(x)
        for side, sign in ((0.0, 1), (4.0, -1)):
            middle = (Fraction(angle) + Fraction(math.nextafter(angle, side))) / 2
            # 1 - cos(m) = 2 sin(m / 2)^2, which loses nothing near an angle of 0.
            beside = 2 * exact_sine(middle / 2) ** 2  # type: ignore[arg-type]
            assert sign * (1 - Fraction(x) - beside) > 0, x
    assert (arc_cosine(1.0), arc_cosine(-1.0), arc_cosine(0.0)) == (0.0, math.pi, math.pi / 2)
    for bad in (1.1, -2.0, math.nan):
        with pytest.raises(ValueError, match=r"arc_cosine: x is .*; allowed: -1.0 to 1.0"):
            arc_cosine(bad)


def test_the_inverse_root_is_rounded_once() -> None:
    """y is nearest to 1/sqrt(n): n times the squares of both midpoints beside y lie on both sides of 1."""
    for number in range(1, 2000):
        root = inverse_root(number)
        below, above = (Fraction(root) + Fraction(math.nextafter(root, side)) for side in (0.0, 2.0))
        assert number * (below / 2) ** 2 < 1 < number * (above / 2) ** 2, number
    with pytest.raises(ValueError, match="number is 0; allowed: at least 1"):
        inverse_root(0)


def test_some_quotients_of_roots_are_rounded_twice() -> None:
    """Planted fault: what `inverse_root` is there for."""
    assert any(1 / math.sqrt(number) != inverse_root(number) for number in range(1, 200))
