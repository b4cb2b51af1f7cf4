"""A row's sum is bounded for every length by the roundings of its tree; a higher tree or a coarser unit is refused."""

from __future__ import annotations

from fractions import Fraction

from samebits.contracts.orders import declared_order
from samebits.numerics.order import height
from samebits.ops.softmax import lengths


def test_a_part_of_the_proof() -> None:
    found = lengths.every_length_sums_to_one(40)
    assert found.proved, str(found)


def test_the_longest_row_has_little_to_spare() -> None:
    """What is allowed is what is possible and at most two roundings more, so a tree of two more levels is refused."""
    tall = height(declared_order("lanes-256", lengths.LONGEST_ROW))
    spare = lengths.allowed(lengths.LONGEST_ROW, "float32") - lengths.worst(tall, lengths.LONGEST_ROW, "float32")
    assert 0 <= spare < 3 * lengths.U
    taller = lengths.worst(tall + 3, lengths.LONGEST_ROW, "float32")
    assert taller > lengths.allowed(lengths.LONGEST_ROW, "float32")


def test_a_sum_in_sixteen_bits_is_beyond_what_is_allowed() -> None:
    assert lengths.worst(1, 2, "float32", Fraction(1, 2**8)) > lengths.allowed(2, "float32")
