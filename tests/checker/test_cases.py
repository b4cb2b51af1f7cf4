"""Inputs are fixed by their names; rows are cut where it hurts; a domain cannot be narrowed to nonsense."""

from __future__ import annotations

import pytest
import torch

from samebits.checker.cases import Case, Selection, batch_sizes, cases, chunk_cuts, micro_cuts, pad_rows
from samebits.checker.outcome import Compared, outcome
from samebits.checker.targets import OPERATORS, find_spec
from samebits.contracts.language import Domain, Draw
from samebits.records.report import UnjudgedError, Verdict

DOMAIN = Domain(
    shapes=[[2, 3, 4], [5, 6, 7]],
    recipes=["normal", "wide"],
    formats=["float32"],
    seeds=[1, 2],
    draw=Draw(sizes=["1..5", "1..6", "1..7"], recipes=["normal"], calls=10_000),
)
CASE = Case((2, 3, 4), "normal", "float32", 1)


def test_a_domain_is_every_combination_and_can_be_narrowed() -> None:
    spec, _ = find_spec("linear", OPERATORS)
    assert len(cases(spec, DOMAIN, Selection())) == 8
    assert cases(spec, DOMAIN, Selection(shape=(2, 3, 4), recipe="normal", seed=1)) == [CASE]
    assert CASE.options == "--shape 2x3x4 --recipe normal --format float32 --seed 1"


@pytest.mark.parametrize(
    ("narrowed", "words"),
    [
        ({"recipe": "mild"}, "recipe='mild' is unknown; allowed: normal"),
        ({"formats": ("float8",)}, "format='float8' is unknown; allowed: float32, bfloat16, float16"),
        ({"seed": -1}, r"seed must be in 0..2\^31-1, got seed=-1"),
        ({"shape": (3, 0, 2)}, "shape must be sizes of at least 1, got shape=3x0x2"),
    ],
)
def test_a_selection_that_means_nothing_is_refused(narrowed: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Selection(**narrowed)  # type: ignore[arg-type]


def test_a_shape_must_fit_the_spec() -> None:
    spec, _ = find_spec("linear", OPERATORS)
    with pytest.raises(ValueError, match="linear: shape=3x4 has 2 sizes; allowed: MxKxN"):
        cases(spec, DOMAIN, Selection(shape=(3, 4)))


def test_batch_sizes_lie_around_powers_of_two() -> None:
    assert batch_sizes(1) == [1]
    assert batch_sizes(20) == [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 20]


@pytest.mark.parametrize("rows", [1, 2, 5, 17, 65])
def test_chunks_and_micro_batches_cover_every_row_once(rows: int) -> None:
    for cuts in (*chunk_cuts(rows), *micro_cuts(rows, 16)):
        assert [row for cut in cuts for row in range(cut.start, cut.stop)] == list(range(rows))
    for cuts in micro_cuts(rows, 16):
        assert all(cut.start % 16 == 0 for cut in cuts) and len(cuts) > 1


def test_padding_keeps_the_rows_between() -> None:
    padded = pad_rows(torch.arange(6.0).reshape(2, 3), 1, 2, float("nan"))
    assert torch.equal(padded[1:3], torch.arange(6.0).reshape(2, 3))
    assert padded[[0, 3, 4]].isnan().all()


def test_an_outcome_stops_at_the_first_difference_and_counts() -> None:
    result = outcome(iter([Compared(CASE), Compared(CASE, "off"), Compared(CASE)]))
    assert (result.verdict, result.cases) == (Verdict.DOES_NOT_HOLD, 2)
    assert result.detail == "2x3x4 normal float32 seed 1: off" and result.again == CASE.options


def test_no_comparison_is_no_pass() -> None:
    result = outcome(iter([]))
    assert result.verdict is Verdict.COULD_NOT_BE_JUDGED
    assert result.detail == "no case of the domain can try this promise"


def test_what_cannot_be_judged_says_why() -> None:
    def comparisons():  # type: ignore[no-untyped-def]
        yield Compared(CASE)
        raise UnjudgedError("no GPU")

    result = outcome(comparisons())
    assert (result.verdict, result.cases, result.detail) == (Verdict.COULD_NOT_BE_JUDGED, 1, "no GPU")
