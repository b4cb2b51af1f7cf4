"""What is promised of calls of operators holds on the CPU: every obligation, and every planted fault is caught."""

from __future__ import annotations

import pytest
from tests.contracts.judged import assert_holds, components_of, judgements_of

pytest.importorskip("triton")

import samebits.ops.contracts
from samebits.checker.obligations import Judgement

COMPONENTS = components_of(samebits.ops.contracts)
JUDGEMENTS = judgements_of(COMPONENTS)


@pytest.fixture(autouse=True)
def poisoned_memory() -> None:
    """Nothing is filled here: a call that fills memory does more than launch."""


@pytest.mark.parametrize("judgement", JUDGEMENTS, ids=lambda judgement: judgement.obligation)
def test_an_obligation_holds_and_its_faults_are_caught(judgement: Judgement) -> None:
    assert_holds(judgement)


def test_the_components_are_those_that_were_meant() -> None:
    """A folder that lost its contract would no longer be judged, and nobody would notice."""
    assert set(COMPONENTS) == {"host_launch"}
