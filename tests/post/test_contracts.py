"""What post-training promises holds on the CPU: every obligation, and every planted fault is caught."""

from __future__ import annotations

from pathlib import Path

import pytest

import samebits.post.contracts
from samebits.checker.judging import judge
from samebits.checker.obligations import Judgement
from samebits.checker.planning import plan_component
from samebits.contracts.registry import components
from samebits.records.report import Verdict

COMPONENTS = components(Path(next(iter(samebits.post.contracts.__path__))), samebits.post.contracts.__name__)
JUDGEMENTS = [each for component in COMPONENTS.values() for each in plan_component(component, backend="cpu").judgements]


@pytest.mark.parametrize("judgement", JUDGEMENTS, ids=lambda judgement: judgement.obligation)
def test_an_obligation_holds_and_its_faults_are_caught(judgement: Judgement) -> None:
    finding = judge(judgement)
    assert finding.verdict is Verdict.HOLDS, finding.detail
    assert finding.faults_caught == finding.faults_planted >= 1


def test_the_components_are_those_that_were_meant() -> None:
    """A folder that lost its contract would no longer be judged, and nobody would notice."""
    assert set(COMPONENTS) == {"model_merging", "pruning", "quantization"}
    assert len(JUDGEMENTS) == sum(len(component.contract().obligations) for component in COMPONENTS.values())
