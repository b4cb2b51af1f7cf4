"""Certificates of attention's indices: what follows is shown, what is false never, and what has neither is said to."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import pytest
import torch

from samebits.contracts.symbolic import solver_module
from samebits.records.report import UnjudgedError
from samebits.train.contracts import attention_indices
from samebits.train.contracts.attention_indices import LAUNCHES, faults, launches_backward, launches_forward
from samebits.train.contracts.attention_indices.certificates import DEPTH, Certifier, Question
from samebits.train.contracts.attention_indices.deciding import Shown, shown
from samebits.train.contracts.attention_indices.polynomials import Polynomial, cofactor, multiplied, without

z3 = solver_module()
# Memory of sizes T, H, D, and one place in it.
PLACE: Polynomial = {("t", "H", "D"): -1, ("h", "D"): -1, ("d",): -1, ("T", "H", "D"): 1, (): -1}


def _ordered(polynomial: Polynomial) -> Polynomial:
    return {tuple(sorted(monomial)): count for monomial, count in polynomial.items()}


def _question(*facts: str) -> Question:
    context = z3.Context()
    names = {name: z3.Int(name, context) for name in ("T", "H", "D", "t", "h", "d")}
    certifier = Certifier(z3, context)
    known: list[Any] = [certifier.naming.formula(eval(fact, names)) for fact in facts]
    return Question(certifier, known)


DIGITS = ("t >= 0", "t < T", "h >= 0", "h < H", "d >= 0", "d < D")


def test_a_place_of_three_digits_is_in_memory() -> None:
    assert _question(*DIGITS).positive(_ordered(PLACE), DEPTH)


@pytest.mark.parametrize("left_out", [1, 3, 5])
def test_a_place_is_not_shown_where_a_digit_has_no_end(left_out: int) -> None:
    facts = [fact for number, fact in enumerate(DIGITS) if number != left_out]
    assert not _question(*facts).positive(_ordered(PLACE), DEPTH)


def test_a_place_in_memory_that_is_an_element_shorter_is_not_shown() -> None:
    assert not _question(*DIGITS).positive(_ordered({**PLACE, (): -2}), DEPTH)


def test_polynomials_are_what_they_are_said_to_be() -> None:
    """(x - 2) (y + 3), what x is multiplied by in it, and 4 q for x where x stands twice."""
    found = multiplied({("x",): 1, (): -2}, {("y",): 1, (): 3})
    assert found == {("x", "y"): 1, ("x",): 3, ("y",): -2, (): -6}
    assert cofactor(found, "x") == {("y",): 1, (): 3}
    assert without({("x", "y"): 4, ("x",): 3}, "x", 2, {("q",): 4}) == {("q", "y"): 8, ("x",): 3}


@pytest.mark.parametrize("name", ["attention_merge", "attention_delta"])
def test_a_launch_stays_in_its_buffers_and_fills_them(name: str) -> None:
    said = shown(LAUNCHES[name])
    assert (said.outside, said.open, said.untouched) == ((), (), ())


def test_planted_faults_are_found_where_they_are() -> None:
    assert all("lse" in place for place in shown(faults.ONE_HEAD).outside) and shown(faults.ONE_HEAD).outside
    assert shown(faults.ONE_LONGER).untouched == ("statistics",)


def test_what_has_neither_certificate_nor_counterexample_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    open_one = Shown(questions=1, outside=(), open=("walk, line 3, k",), buffers=1, untouched=())
    monkeypatch.setattr(attention_indices, "shown", lambda launch: open_one)
    with pytest.raises(
        UnjudgedError, match=r"attention_\w+: neither a certificate nor a counterexample for walk, line 3"
    ):
        attention_indices.beyond(torch.arange(1))


@pytest.mark.parametrize("cases", [launches_forward.CASES, launches_backward.CASES])
def test_any_two_flags_of_a_launch_meet_in_every_combination(cases: tuple[tuple[Any, ...], ...]) -> None:
    for first, second in combinations(range(len(cases[0])), 2):
        met = {(case[first], case[second]) for case in cases}
        assert met == set(product({case[first] for case in cases}, {case[second] for case in cases}))
