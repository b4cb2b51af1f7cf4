"""What the tests of components share: those of a package, all of their obligations, and what each must show."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from samebits.checker.judging import judge
from samebits.checker.obligations import Judgement
from samebits.checker.planning import plan_component
from samebits.contracts.registry import Component, components
from samebits.records.report import Verdict


def components_of(package: ModuleType) -> dict[str, Component]:
    return dict(components(Path(next(iter(package.__path__))), package.__name__))


def judgements_of(known: dict[str, Component]) -> list[Judgement]:
    """Every obligation that the CPU has; none may be left out."""
    found = [each for component in known.values() for each in plan_component(component, backend="cpu").judgements]
    contracts = [component.contract() for component in known.values()]
    assert len(found) == sum(
        "cpu" in contract.subjects[each.subject].orders
        for contract in contracts
        for each in contract.obligations.values()
    )
    return found


def assert_holds(judgement: Judgement) -> None:
    """On its written cases, and every planted fault is caught."""
    finding = judge(judgement)
    assert finding.verdict is Verdict.HOLDS, finding.detail
    assert finding.faults_caught == finding.faults_planted >= 1
