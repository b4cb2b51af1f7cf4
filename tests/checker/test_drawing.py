"""Level 3 draws what it says, the same for the same seed on every machine, and makes failures small."""

from __future__ import annotations

import pytest

from samebits.checker.cases import Case
from samebits.checker.drawing import Stream, drawn, minimised
from samebits.contracts.language import Domain, Draw

DOMAIN = Domain(
    shapes=[[1, 1]],
    recipes=["normal"],
    formats=["float32", "bfloat16"],
    seeds=[1],
    draw=Draw(sizes=["1..33", "2, 300"], recipes=["normal", "wide", "infinite"], calls=10_000),
)

# Cases of seed 7, by index: corners first, then what Philox draws.
PINNED = {
    0: "33x300 normal float32 seed 1640531534",
    11: "33x2 infinite bfloat16 seed 359025499",
    12: "19x2 wide bfloat16 seed 1999557026",
    13: "4x2 wide bfloat16 seed 1492604905",
    600: "33x300 infinite float32 seed 264453302",
    9999: "4x2 wide float32 seed 687682935",
}


def test_the_same_seed_draws_the_same_cases() -> None:
    first, again, other = (drawn(DOMAIN, DOMAIN.formats, 2000, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len(set(first)) == len(first) == 2000
    assert drawn(DOMAIN, DOMAIN.formats, 1000, 1) == first[:1000]
    assert {case.recipe for case in first} == {"normal", "wide", "infinite"}
    assert {case.format for case in first} == {"float32", "bfloat16"}
    assert {case.shape[1] for case in first} == {2, 300} and {case.shape[0] for case in first} == set(range(1, 34))


def test_a_case_follows_from_its_index_alone() -> None:
    """Whoever draws one case draws the one that all others draw there, and no two of a long stream are one."""
    whole = drawn(DOMAIN, DOMAIN.formats, 3000, 5)
    for index in (2999, 0, 511, 512, 1234):
        assert Stream(DOMAIN, DOMAIN.formats, 5)[index] == whole[index]
    assert len({case.seed for case in drawn(DOMAIN, DOMAIN.formats, 160_000, 5)}) == 160_000


def test_the_cases_are_those_of_every_machine() -> None:
    stream = Stream(DOMAIN, DOMAIN.formats, 7)
    assert {index: str(stream[index]) for index in PINNED} == PINNED


def test_small_sizes_are_many_and_large_ones_are_not_rare() -> None:
    rows = [case.shape[0] for case in drawn(DOMAIN, DOMAIN.formats, 10_000, 3)]
    counted = [rows.count(size) for size in range(1, 34)]
    assert min(counted) >= 40 and sum(counted[:8]) > sum(counted[8:16])
    assert sum(counted[16:]) > 1500


def test_a_seed_that_no_case_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"seed must be in 0\.\.2147483647, got seed=-1"):
        Stream(DOMAIN, DOMAIN.formats, -1)


def test_a_failure_is_made_small() -> None:
    """What fails for at least 9 rows of infinite numbers comes down to 9 rows, 2 columns, and a small seed."""
    large = Case((31, 300), "infinite", "bfloat16", 12345)
    small = minimised(large, DOMAIN, lambda case: case.shape[0] >= 9 and case.recipe == "infinite")
    assert small == Case((9, 2), "infinite", "bfloat16", 0)
