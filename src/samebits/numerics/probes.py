"""Questions to a summing callable: which leaves meet first, how many bits a partial sum keeps, does it repeat.

Knows no order; `reveal` asks these questions and builds the order from the answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from samebits.numerics.bits import hexadecimal, same_bits
from samebits.numerics.recipes import make

Run: TypeAlias = Callable[[np.ndarray], float]


class CannotJudgeError(Exception):
    """The answers do not describe any order; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeValues:
    """Numbers put on leaves. `large` swallows every `unit` it meets; `one` and smaller powers of two measure widths."""

    large: float = 2.0**127
    unit: float = 1.0
    one: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoding:
    """How a callable that turns its inputs into non-negative leaves is probed and replayed."""

    one: float
    """Input whose leaf is 1 (or any power of two that `small` is scaled with)."""
    small: float
    """Input whose leaf is 2^-24 of that: two of them move a 1 together and not one by one."""
    zero: float
    """Input whose leaf is 0."""
    leaves: Callable[[np.ndarray], np.ndarray | tuple[np.ndarray, np.ndarray]]
    """Inputs [..., n] to the leaves that are summed: float32 values, or pairs to be multiplied."""
    finish: Callable[[np.ndarray], np.ndarray] = lambda total: total
    """What the callable does to the sum."""
    inputs: Callable[[np.ndarray], np.ndarray] = lambda values: values
    """Values of a recipe to inputs the callable may be given."""


SQUARES: Final = Encoding(one=1.0, small=2.0**-12, zero=0.0, leaves=lambda x: (x, x))

# The largest count n for which 0, 1, ... n units are all exact in the output.
READABLE: Final = {"float32": 2**24, "bfloat16": 2**8, "float16": 2**11}
LEAF_VALUES: Final = {
    "float32": ProbeValues(),
    "bfloat16": ProbeValues(),
    "float16": ProbeValues(large=2.0**15, unit=2.0**-24, one=2.0**14),
}
# The widest accumulator that can be told from an exact one: 25 fraction bits and the leading one.
ACCUMULATOR_BITS: Final = 25
REPEATS: Final = 8


class Subject:
    """The callable under question: checks what it returns and counts how often it ran."""

    def __init__(self, run: Run, n: int, leaf: str, output: str, values: ProbeValues | None) -> None:
        for name, format in (("leaf", leaf), ("output", output)):
            if format not in READABLE:
                raise ValueError(f"reveal: {name}={format!r} is unknown; allowed: {', '.join(READABLE)}")
        if n < 1:
            raise ValueError(f"reveal: n must be at least 1, got n={n}")
        self.n, self.leaf, self.output = n, leaf, output
        self.values = values or LEAF_VALUES[leaf]
        self.runs = 0
        self._run = run

    def read(self, values: np.ndarray) -> np.float32:
        """One run. The result must be one number that float32 holds."""
        self.runs += 1
        result = np.asarray(self._run(values))
        if result.size != 1:
            raise ValueError(f"reveal: run() returned shape {list(result.shape)}; one number is needed")
        number = float(result.reshape(()))
        with np.errstate(over="ignore"):
            held = np.float32(number)
        if float(held) != number and not math.isnan(number):
            raise ValueError(f"reveal: run() returned {hexadecimal(number)}, which is no float32; round it first")
        return held

    def ask(self, placed: dict[int, float], elsewhere: float = 0.0) -> float:
        """One run with a few leaves set."""
        values = np.full(self.n, elsewhere, np.float32)
        for index, value in placed.items():
            values[index] = value
        return float(self.read(values))

    def check_steady(self, encoding: Encoding | None) -> None:
        """Equal inputs must give equal bits, or no answer means anything."""
        values = make("cancelling", (self.n,), 7, self.leaf)
        if encoding is not None:
            values = encoding.inputs(values)
        first = self.read(values.copy())
        for _ in range(REPEATS):
            again = self.read(values.copy())
            if not same_bits(first, again):
                pair = f"{hexadecimal(float(first))} != {hexadecimal(float(again))}"
                raise CannotJudgeError(f"two runs on equal values differ: {pair}")


class SignedQuestions:
    """Questions asked with +large, -large and units."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        values, n = subject.values, subject.n
        if values.large / (n * values.unit) <= 2.0 ** (ACCUMULATOR_BITS + 1):
            raise CannotJudgeError(f"large={values.large} does not swallow n={n} units of {values.unit}")
        self.unit_out = subject.ask({0: values.unit})
        self.scale = self.unit_out / values.unit
        mantissa = float(np.frexp(self.scale)[0])
        if mantissa != 0.5:
            raise CannotJudgeError(f"a unit alone gives {self.unit_out}; expected a power of two times {values.unit}")
        for index, value in ((n - 1, values.unit), (0, values.large), (n - 1, -values.large)):
            out = subject.ask({index: value})
            if out != value * self.scale:
                raise CannotJudgeError(f"{value} alone at leaf {index} gives {out}; expected {value * self.scale}")

    def counts_are_readable(self) -> bool:
        """Whether every count of units up to n is exact in the output."""
        subject = self.subject
        if subject.n > READABLE[subject.output]:
            return False
        return subject.ask({}, elsewhere=subject.values.unit) == subject.n * self.unit_out

    def span(self, i: int, j: int) -> int:
        """How many leaves lie under the node where i and j meet: units under it are swallowed, the others survive."""
        values = self.subject.values
        survivors = self.subject.ask({i: values.large, j: -values.large}, elsewhere=values.unit) / self.unit_out
        span = self.subject.n - survivors
        if not (2 <= span <= self.subject.n and span == int(span)):
            raise CannotJudgeError(f"leaves {i} and {j}: {survivors} of {self.subject.n} units survive")
        return int(span)

    def first(self, a: int, b: int, c: int) -> tuple[int, int] | None:
        """Which two of three leaves meet strictly before the third; None where all meet in one node."""
        values = self.subject.values
        for i, j, k in ((a, b, c), (a, c, b), (b, c, a)):
            out = self.subject.ask({i: values.large, j: -values.large, k: values.unit})
            if out == self.unit_out:
                return i, j
            if out != 0:
                raise CannotJudgeError(f"leaves {i}, {j}, {k}: read {out}; expected 0 or {self.unit_out}")
        return None

    def stored_fraction_bits(self, a: int, b: int, outside: int) -> int:
        """Fraction bits of the partial sum of a and b: the least 2^-p beside 1 that survives until -1 arrives."""
        return self._least_surviving(lambda one, small: {a: one, b: small, outside: -one})

    def aligned_fraction_bits(self, a: int, b: int, c: int) -> int:
        """Fraction bits inside a node where three leaves meet: the least 2^-p that survives beside 1 and -1."""
        return self._least_surviving(lambda one, small: {a: one, b: small, c: -one})

    def _least_surviving(self, placed: Callable[[float, float], dict[int, float]]) -> int:
        one, most = self.subject.values.one, 60 if self.subject.leaf != "float16" else 38
        for p in range(1, most + 1):
            if self.subject.ask(placed(one, one * 2.0**-p)) == 0:
                return p - 1
        return most


class NonNegativeQuestions:
    """Questions asked with a 1 and two small leaves, for sums that take no negative leaf."""

    def __init__(self, subject: Subject, encoding: Encoding) -> None:
        self.subject, self.encoding = subject, encoding
        self._alone: dict[int, float] = {}

    def _moved(self, one: int, small: tuple[int, int]) -> bool:
        """Whether two small leaves together moved the 1: they met before it, or with it."""
        encoding = self.encoding
        if one not in self._alone:
            self._alone[one] = self.subject.ask({one: encoding.one}, elsewhere=encoding.zero)
        placed = {one: encoding.one, small[0]: encoding.small, small[1]: encoding.small}
        return self.subject.ask(placed, elsewhere=encoding.zero) != self._alone[one]

    def first(self, a: int, b: int, c: int) -> tuple[int, int] | None:
        """Which two of three leaves meet strictly before the third; None where all meet in one node."""
        pairs = ((a, b), (a, c), (b, c))
        moved = [self._moved(one, pair) for one, pair in zip((c, b, a), pairs, strict=True)]
        if all(moved):
            return None
        if sum(moved) != 1:
            count = f"{sum(moved)} of 3 non-negative probes moved the sum"
            raise CannotJudgeError(f"leaves {a}, {b}, {c}: {count}; expected 1 or 3")
        return pairs[moved.index(True)]
