"""Softmax's sum for every length of a row, whatever is in it: the roundings on the way, in exact fractions.

A row's exponentials are e >= 0, and that of its maximum is 1. The kernels add them in the declared tree (every_tree and
the traces show that they do), each of height h, so S = E (1 + t) with 1 + t between (1 - u)^h and (1 + u)^h; then
y = round(e * (1 / S)): a reciprocal, a product, and the rounding to the format. So the sum of all y lies between
(1 - u)^2 (1 - v) / (1 + u)^h and (1 + u)^2 (1 + v) / (1 - u)^h, but for what underflows. Runs no kernel."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Final

from samebits.contracts.orders import declared_order, sum_error
from samebits.contracts.proof import Proof
from samebits.numerics.order import height

LONGEST_ROW: Final = 4096
U: Final = Fraction(1, 2**24)
# The last rounding's unit, and the smallest number of each format.
FORMATS: Final = {
    "float32": (Fraction(0), Fraction(1, 2**149)),
    "bfloat16": (Fraction(1, 2**8), Fraction(1, 2**133)),
    "float16": (Fraction(1, 2**11), Fraction(1, 2**24)),
}


def worst(tree_height: int, terms: int, format: str, unit: Fraction = U) -> Fraction:
    """How far from 1 the sum of a row's weights can be; `unit` is the accumulator's."""
    last, smallest = FORMATS[format]
    above = (1 + U) ** 2 * (1 + last) / (1 - unit) ** tree_height - 1
    below = 1 - (1 - U) ** 2 * (1 - last) / (1 + unit) ** tree_height
    return max(above, below) + terms * smallest


def allowed(terms: int, format: str) -> Fraction:
    """What the predicate `sums_to` of the contract allows."""
    last, smallest = FORMATS[format]
    return Fraction(sum_error("lanes-256", terms)) + 3 * U + last + terms * smallest


@cache
def _declared_height(terms: int) -> int:
    return height(declared_order("lanes-256", terms))


def _beyond(terms: int, tree_height: int, unit: Fraction = U) -> str:
    for format in FORMATS:
        if worst(tree_height, terms, format, unit) > allowed(terms, format):
            return f"n = {terms}, {format}: {float(worst(tree_height, terms, format, unit)):.3g} is possible"
    return ""


def every_length_sums_to_one(longest: int = LONGEST_ROW) -> Proof:
    """No row of up to so many numbers, finite or -inf beside one that is finite, sums to more or less than allowed."""
    decided, witness, shown = hashlib.sha256(), "", 0
    for terms in range(1, longest + 1):
        tree_height = _declared_height(terms)
        decided.update(f"{terms} {tree_height}\n".encode())
        witness = witness or _beyond(terms, tree_height)
        shown += not witness
    wrong: list[Callable[[], str]] = [
        lambda: _beyond(longest, longest - 1),
        lambda: _beyond(longest, _declared_height(longest), Fraction(1, 2**8)),
    ]
    return Proof(
        kind="order",
        cases=shown,
        expected=longest,
        planted=len(wrong),
        caught=sum(bool(twin()) for twin in wrong),
        witness=witness,
        digest=decided.hexdigest(),
        bound=f"n <= {longest}, every row with a finite maximum, three formats: the declared tree's roundings",
    )
