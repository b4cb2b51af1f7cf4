"""An obligation of a contract, ready to be judged: its subject, its check, its cases and its planted faults.

Knows no operator and runs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from samebits.checker.cases import Case, Selection, cases
from samebits.checker.driving import Setting
from samebits.checker.promises import Check
from samebits.checker.properties import check_of
from samebits.checker.targets import import_function, specs
from samebits.contracts.language import Contract, example_of
from samebits.contracts.registry import Component
from samebits.contracts.spec import OperatorSpec

BOTH = "cpu, triton"


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """One promise of one subject on one backend, ready to be judged."""

    subject: str
    promise: str
    """What is asked: a promise, or another predicate by name."""
    backend: str
    setting: Setting
    check: Check | None
    """What executes it; None where nothing does yet."""
    cases: list[Case]
    component: bool
    obligation: str
    mutants: dict[str, str]
    """Planted faults: id to importable name."""
    fault_cases: list[Case]
    """What planted faults are tried on: the whole domain, however much a caller narrows it for the subject."""
    command: str
    """The command that asks for this judgement; a case's options are appended."""


def subject_name(component: Component, spec: OperatorSpec) -> str:
    """How a reader knows a subject: by its contract, and by its own name where the contract has several."""
    return component.name if spec.name == component.name else f"{component.name}.{spec.name}"


def judgements(
    component: Component, contract: Contract, identifier: str, backend: str | None, selection: Selection
) -> Iterator[Judgement]:
    """One for each backend that the obligation is about, or for the one asked for; `device` compares both at once."""
    obligation = contract.obligations[identifier]
    subject = contract.subjects[obligation.subject]
    spec = specs(component)[subject.spec]
    backends = [BOTH] if obligation.name == "device" else [each for each in subject.orders if backend in (None, each)]
    function = import_function(subject.object)
    examples = [Case(*example_of(text)) for test in obligation.tests for text in contract.tests[test].examples]
    reference = import_function(contract.equations[subject.equation].reference)
    for each in backends:
        orders = subject.orders["cpu" if each == BOTH else each]
        domain = contract.domains[obligation.domain]
        chosen, whole = (
            [case for case in dict.fromkeys((*cases(spec, domain, narrowed), *kept)) if case.format in orders]
            for narrowed, kept in ((selection, () if selection.narrows else examples), (Selection(), examples))
        )
        backend_option = "" if each == BOTH else f" --backend {each}"
        yield Judgement(
            subject=subject_name(component, spec),
            promise=obligation.word,
            backend=each,
            cases=chosen,
            component=True,
            obligation=identifier,
            check=check_of(obligation),
            setting=Setting(
                function=function,
                spec=spec,
                backend="cpu" if each == BOTH else each,
                orders=orders,
                reference=reference,
                importable=subject.object,
            ),
            mutants={mutant: contract.mutants[mutant].object for mutant in obligation.mutants},
            fault_cases=whole,
            command=f"samebits check {component.name} --like {spec.name} --promise {obligation.word}{backend_option}",
        )
