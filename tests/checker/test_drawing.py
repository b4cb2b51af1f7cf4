"""Level 3 draws what it says, the same for the same seed, counts distinct inputs, and makes failures small."""

from __future__ import annotations

from samebits.checker.cases import Case
from samebits.checker.drawing import distinct_rows, drawn, minimised
from samebits.checker.targets import OPERATORS, doors
from samebits.contracts.language import Domain, Draw

DOMAIN = Domain(
    shapes=[[1, 1]], recipes=["normal"], formats=["float32", "bfloat16"], seeds=[1],
    draw=Draw(sizes=["1..33", "2, 300"], recipes=["normal", "wide", "infinite"], inputs=10_000),
)  # fmt: skip


def test_the_same_seed_draws_the_same_cases() -> None:
    first, again, other = (drawn(DOMAIN, DOMAIN.formats, 2000, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert sum(case.shape[0] for case in first) >= 2000
    assert {case.recipe for case in first} == {"normal", "wide", "infinite"}
    assert {case.format for case in first} == {"float32", "bfloat16"}
    assert {case.shape[1] for case in first} == {2, 300} and {case.shape[0] for case in first} <= set(range(1, 34))


def test_equal_rows_count_once() -> None:
    door = doors(OPERATORS.rooms()["softmax"])["softmax"]
    case = Case((7, 5), "normal", "float32", 3)
    assert len(set(distinct_rows(door, [case]))) == 7
    assert len(set(distinct_rows(door, [case, case]))) == 7
    assert len(set(distinct_rows(door, [case, Case((7, 5), "normal", "float32", 4)]))) == 14
    assert len(set(distinct_rows(door, [Case((7, 5), "constant", "float32", 3)]))) == 7


def test_a_failure_is_made_small() -> None:
    """What fails for at least 9 rows of infinite numbers comes down to 9 rows, 2 columns, and a small seed."""
    large = Case((31, 300), "infinite", "bfloat16", 12345)
    small = minimised(large, DOMAIN, lambda case: case.shape[0] >= 9 and case.recipe == "infinite")
    assert small == Case((9, 2), "infinite", "bfloat16", 0)
