"""A second, slow and plain way to carry out an order, and random orders to try things on."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest

from samebits.numerics.order import Cast, Fused, Leaf, Nearest, Node, Order, nodes

Pair = tuple[float, float]


def _exponent(value: float, lowest: int) -> int:
    return max(math.frexp(value)[1] - 1, lowest)


def _cut(value: Fraction, unit: Fraction) -> int:
    """value / unit, towards zero."""
    quotient = abs(value) / unit
    return math.copysign(1, value) * (quotient.numerator // quotient.denominator)


def slow_fused(terms: Sequence[float | Pair], fraction_bits: int, keep_bits: int, lowest: int = -126) -> float:
    """One fused addition in exact fractions: finite terms; numbers are partial sums, pairs are products."""
    exact, exponents = [], []
    for term in terms:
        value = Fraction(term[0]) * Fraction(term[1]) if isinstance(term, tuple) else Fraction(term)
        if value:
            exact.append(value)
            factors = [_exponent(x, lowest) for x in term] if isinstance(term, tuple) else [_exponent(term, -126)]
            exponents.append(sum(factors))
    if not exact:
        return 0.0
    largest = max(exponents)
    unit = Fraction(2) ** (largest - fraction_bits)
    total = int(sum(_cut(value, unit) for value in exact))
    drop = max(abs(total).bit_length() - keep_bits, -149 - (largest - fraction_bits), 0)
    kept = (abs(total) >> drop) * (1 if total >= 0 else -1)
    result = Fraction(kept) * Fraction(2) ** (largest - fraction_bits + drop)
    if abs(result) >= Fraction(2) ** 128:
        return math.copysign(math.inf, result)
    return float(result)


def _slow_sum(order: Order, values: Sequence[float]) -> float:
    """Plain values in Python numbers. A float32 sum taken in float64 and rounded once more is the float32 sum."""
    done: list[float] = []
    for part in nodes(order):
        if isinstance(part, Leaf):
            done.append(float(values[part.index]))
            continue
        kids = done[-len(part.kids) :]
        del done[-len(part.kids) :]
        if isinstance(part.kind, Nearest):
            with np.errstate(over="ignore"):
                done.append(float(np.float32(kids[0] + kids[1])))
        elif isinstance(part.kind, Fused):
            done.append(_quick_fused(kids, part.kind))
        else:
            raise NotImplementedError(part.kind)
    return done[0]


def _quick_fused(terms: list[float], kind: Fused) -> float:
    """slow_fused for partial sums whose results stay clear of both ends of float32."""
    terms = [term for term in terms if term]
    if not terms:
        return 0.0
    largest = max(math.frexp(term)[1] - 1 for term in terms)
    total = sum(math.trunc(math.ldexp(term, kind.fraction_bits - largest)) for term in terms)
    drop = max(abs(total).bit_length() - kind.keep_bits, 0)
    kept = (abs(total) >> drop) * (1 if total >= 0 else -1)
    return math.ldexp(kept, largest - kind.fraction_bits + drop)


@pytest.fixture(name="slow_fused")
def slow_fused_fixture() -> Callable[..., float]:
    return slow_fused


@pytest.fixture
def slow_sum() -> Callable[[Order, Sequence[float]], float]:
    return _slow_sum


@pytest.fixture
def random_order() -> Callable[..., Order]:
    """make(n, seed, arity): a random tree over n leaves, nodes of up to `arity` kids, some of them cast on request."""

    def make(n: int, seed: int, arity: int = 6, casts: bool = False) -> Order:
        chance = random.Random(seed)
        parts: list[Order] = [Leaf(i) for i in range(n)]
        chance.shuffle(parts)
        while len(parts) > 1:
            count = min(len(parts), chance.choice([2, 2, *range(2, arity + 1)]))
            kids = tuple(parts.pop(chance.randrange(len(parts))) for _ in range(count))
            node = Node(Nearest() if count == 2 else Fused(), kids)
            parts.append(Node(Cast("bfloat16"), (node,)) if casts and chance.random() < 0.3 else node)
        return parts[0]

    return make
