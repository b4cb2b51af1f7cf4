"""Receipts for tests, made up as a run that went well would make them: nothing is run."""

from __future__ import annotations

from dataclasses import replace

from samebits.checker.present import Present
from samebits.checker.proving import Task, tasks
from samebits.contracts.language import Contract
from samebits.contracts.receipts import Receipt
from samebits.contracts.registry import Component

RESULT = "5" * 64


def made_up(component: Component, present: Present, levels: tuple[int, ...] = (1, 2, 3, 4)) -> list[Receipt]:
    """A good receipt for everything there is to show, tied to what lies here."""
    return [each for task in tasks(component, levels) for each in receipts_of(task, present)]


def receipts_of(task: Task, present: Present) -> list[Receipt]:
    contract, found = task.component.contract(), []
    for identifier, backend in task.speaks_for():
        facts = present.facts(task.component, identifier, backend, task.method, task.entry)
        found.append(
            Receipt(
                contract=task.component.name,
                obligation=identifier,
                backend=backend,
                level=task.level,
                method=task.method,
                by=_by(contract, task, identifier),
                holds=True,
                sources=dict(facts.sources),
                result=RESULT,
                seconds=1.0,
                dependencies=dict(facts.dependencies),
                where=dict(facts.where),
                **_outcome(contract, task, identifier),
            )
        )
    return found


def made_at(receipt: Receipt, present: Present, **place: str) -> Receipt:
    """The same receipt had it been made elsewhere: tied to what is compiled there."""
    there = replace(receipt, where={**receipt.where, **place})
    facts = present.of(there)
    assert facts is not None
    return replace(there, sources=dict(facts.sources), dependencies=dict(facts.dependencies))


def _by(contract: Contract, task: Task, identifier: str) -> str:
    if task.entry is not None:
        return task.entry.by
    return "mypy --strict" if task.level == 1 else contract.obligations[identifier].name


def _outcome(contract: Contract, task: Task, identifier: str) -> dict[str, object]:
    if task.level in (1, 4):
        return {"bound": "all of it" if task.level == 4 else ""}
    obligation = contract.obligations[identifier]
    draw = contract.domains[obligation.domain].draw
    return {
        "calls": draw.calls,
        "cases": draw.calls,
        "planted": len(obligation.mutants),
        "killed": dict.fromkeys(obligation.mutants, "1x1 normal float32 seed 1"),
        "classes": dict.fromkeys(draw.recipes, 1),
    }
