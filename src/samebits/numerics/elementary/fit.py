"""Finds the polynomial coefficients that `functions.py` quotes: minimax fits whose coefficients are float32 numbers.

Knows no evaluation scheme. Nothing imports it at run time; `python -m samebits.numerics.elementary.fit` prints the
tables, and a test holds the quoted ones to the accuracy printed here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
POINTS: Final = 4001


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Minimise max |weight(t) * (target(t) - polynomial(t))| over low..high."""

    target: Callable[[Doubles], Doubles]
    weight: Callable[[Doubles], Doubles]
    low: float
    high: float
    degree: int

    def points(self) -> Doubles:
        middle, half = (self.high + self.low) / 2, (self.high - self.low) / 2
        return middle + half * np.cos(np.pi * (np.arange(POINTS) + 0.5) / POINTS)

    def error(self, coefficients: Doubles) -> float:
        t = self.points()
        return float(np.max(np.abs(self.weight(t) * (self.target(t) - np.polyval(coefficients[::-1], t)))))

    def solve(self) -> Doubles:
        """Round one coefficient after another, lowest degree first, and let the rest make up for it."""
        fixed: list[float] = []
        while len(fixed) <= self.degree:
            best = self._minimax(np.array(fixed))
            fixed.append(float(np.float32(best[0])))
        return np.array(fixed)

    def _minimax(self, fixed: Doubles) -> Doubles:
        """Lawson's iteration: least squares whose weights move towards the worst points."""
        t, rank = self.points(), len(fixed)
        rest = self.target(t) - np.polyval(fixed[::-1], t) if rank else self.target(t)
        matrix = self.weight(t)[:, None] * t[:, None] ** np.arange(rank, self.degree + 1)
        right, emphasis = self.weight(t) * rest, np.full(POINTS, 1.0 / POINTS)
        best, least = np.zeros(self.degree + 1 - rank), math.inf
        for _ in range(60):
            root = np.sqrt(emphasis)
            scale = np.max(np.abs(matrix), axis=0)
            solution = np.linalg.lstsq(matrix / scale * root[:, None], right * root, rcond=None)[0] / scale
            residual = np.abs(matrix @ solution - right)
            if residual.max() < least:
                best, least = solution, float(residual.max())
            emphasis *= residual + 1e-3 * residual.max()
            emphasis /= emphasis.sum()
        return best


def _series(t: Doubles, terms: list[float]) -> Doubles:
    """A power series, lowest degree first: what a ratio is where its plain formula would cancel."""
    return np.asarray(np.polyval(np.array(terms[::-1]), t), np.float64)


def _exp_ratio(r: Doubles) -> Doubles:
    """(exp(r) - 1 - r) / r^2."""
    return _series(r, [1 / math.factorial(k + 2) for k in range(16)])


def _exp2_ratio(r: Doubles) -> Doubles:
    """(2^r - 1 - r ln 2) / r^2."""
    return _series(r, [math.log(2) ** (k + 2) / math.factorial(k + 2) for k in range(18)])


def _log_ratio(f: Doubles) -> Doubles:
    """(log(1 + f) - f + f^2/2) / f^3."""
    near = np.abs(f) < 0.02
    safe = np.where(near, 0.1, f)
    exact = (np.log1p(safe) - safe + safe**2 / 2) / safe**3
    return np.where(near, _series(f, [(-1) ** k / (k + 3) for k in range(10)]), exact)


def _sine_ratio(z: Doubles) -> Doubles:
    """(sin(x) - x) / x^3 at z = x^2."""
    return _series(z, [(-1) ** (k + 1) / math.factorial(2 * k + 3) for k in range(10)])


def _cosine_ratio(z: Doubles) -> Doubles:
    """(cos(x) - 1 + x^2/2) / x^4 at z = x^2."""
    return _series(z, [(-1) ** k / math.factorial(2 * k + 4) for k in range(10)])


def _tanh_ratio(z: Doubles) -> Doubles:
    """(tanh(x) - x) / x^3 at z = x^2."""
    near = z < 0.01
    x = np.sqrt(np.where(near, 0.5, z))
    return np.where(near, _series(z, [-1 / 3, 2 / 15, -17 / 315, 62 / 2835, -1382 / 155925]), (np.tanh(x) - x) / x**3)


def _erf_ratio(s: Doubles) -> Doubles:
    """erf(x) / x - 1 at s = x^2 - ERF_MIDDLE."""
    x = np.sqrt(s + ERF_MIDDLE)
    return np.array([math.erf(v) / v for v in x]) - 1.0


def _log2_erfc(t: Doubles) -> Doubles:
    """(log2(erfc(x)) + 2) / t at t = x - ERFC_CENTRE."""
    return (np.log2(_erfc(t)) + 2.0) / t


def _erfc(t: Doubles) -> Doubles:
    return np.array([math.erfc(v + ERFC_CENTRE) for v in t])


# Polynomials of erf are centred, so that their last steps, whose roundings weigh most, add little to a constant. At the
# second centre erfc is 1/4, nearly: the constant of its logarithm is a whole number and costs no rounding.
ERF_MIDDLE: Final = 0.5
ERFC_CENTRE: Final = float.fromhex("0x1.a0788p-1")
ERF_SPLIT: Final = 1.09375
ERF_IS_ONE: Final = 3.93
HALF_LN2: Final = math.log(2) / 2
QUARTER_PI_SQUARED: Final = (math.pi / 4) ** 2

FITS: Final = {
    "EXP": Fit(
        target=_exp_ratio, weight=lambda r: r**2 / np.exp(r), low=-HALF_LN2 * 1.001, high=HALF_LN2 * 1.001, degree=4
    ),
    "EXP2": Fit(target=_exp2_ratio, weight=lambda r: r**2 / np.exp2(r), low=-0.5, high=0.5, degree=4),
    "LOG": Fit(
        target=_log_ratio,
        weight=lambda f: np.abs(f**3 / np.log1p(f)),
        low=math.sqrt(0.5) - 1,
        high=math.sqrt(2) - 1,
        degree=8,
    ),
    "SIN": Fit(target=_sine_ratio, weight=lambda z: z, low=0.0, high=QUARTER_PI_SQUARED, degree=3),
    "COS": Fit(target=_cosine_ratio, weight=lambda z: z**2, low=0.0, high=QUARTER_PI_SQUARED, degree=2),
    "TANH": Fit(target=_tanh_ratio, weight=lambda z: z**1.5 / np.tanh(np.sqrt(z)), low=1e-9, high=1.0, degree=6),
    "ERF": Fit(
        target=_erf_ratio,
        weight=lambda s: 1 / (1 + _erf_ratio(s)),
        low=1e-9 - ERF_MIDDLE,
        high=ERF_SPLIT**2 - ERF_MIDDLE,
        degree=6,
    ),
    "LOG2_ERFC": Fit(
        target=_log2_erfc,
        weight=lambda t: _erfc(t) * math.log(2) * t,
        low=ERF_SPLIT - ERFC_CENTRE,
        high=ERF_IS_ONE - ERFC_CENTRE,
        degree=5,
    ),
    "POWER": Fit(target=np.exp2, weight=lambda r: 1 / np.exp2(r), low=-0.5, high=0.5, degree=5),
}

if __name__ == "__main__":
    for name, fit in FITS.items():
        coefficients = fit.solve()
        print(f"# error {fit.error(coefficients):.2e} = 2^{math.log2(fit.error(coefficients)):.1f}")
        print(f"{name} = floats({', '.join(repr(float(c).hex()) for c in coefficients)})")
