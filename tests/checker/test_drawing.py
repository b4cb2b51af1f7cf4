"""Level 3 draws what it says, the same for the same seed, and makes failures small."""

from __future__ import annotations

from samebits.checker.cases import Case
from samebits.checker.drawing import drawn, minimised
from samebits.contracts.language import Domain, Draw

DOMAIN = Domain(
    shapes=[[1, 1]],
    recipes=["normal"],
    formats=["float32", "bfloat16"],
    seeds=[1],
    draw=Draw(sizes=["1..33", "2, 300"], recipes=["normal", "wide", "infinite"], calls=10_000),
)


def test_the_same_seed_draws_the_same_cases() -> None:
    first, again, other = (drawn(DOMAIN, DOMAIN.formats, 2000, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len(set(first)) == len(first) == 2000
    assert drawn(DOMAIN, DOMAIN.formats, 1000, 1) == first[:1000]
    assert {case.recipe for case in first} == {"normal", "wide", "infinite"}
    assert {case.format for case in first} == {"float32", "bfloat16"}
    assert {case.shape[1] for case in first} == {2, 300} and {case.shape[0] for case in first} <= set(range(1, 34))


def test_a_failure_is_made_small() -> None:
    """What fails for at least 9 rows of infinite numbers comes down to 9 rows, 2 columns, and a small seed."""
    large = Case((31, 300), "infinite", "bfloat16", 12345)
    small = minimised(large, DOMAIN, lambda case: case.shape[0] >= 9 and case.recipe == "infinite")
    assert small == Case((9, 2), "infinite", "bfloat16", 0)
