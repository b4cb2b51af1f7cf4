"""Levels 2 and 3: what an obligation and its planted faults gave on cases, with a digest that a replay must give again.

Level 2 tries the cases written down, here; level 3 draws them (see streaming.py). The digest covers every case with
its outcome and with the bits of the first output on it, and which planted faults died. Makes no receipt."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from torch import Tensor

from samebits.checker.cases import Case, Selection
from samebits.checker.fresh import digest
from samebits.checker.obligations import Judgement, judgements
from samebits.checker.outcome import Outcome, outcome
from samebits.checker.targets import import_object
from samebits.contracts.registry import Component
from samebits.records.report import UnjudgedError, Verdict

# Mutants meet the cases in slices, so that one that dies early costs little.
SLICE = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """What a run at level 2 or 3 found."""

    holds: bool
    cases: int
    calls: int
    classes: dict[str, int]
    killed: dict[str, str]
    planted: int
    detail: str
    result: str
    seconds: float = 0.0
    """Of a run beside others: its own, and its share of what they had in common."""


class Seen:
    """The digest of the first output on each case, in the order of the calls."""

    def __init__(self) -> None:
        self.outputs: dict[Case, str] = {}

    def watch(self, case: Case, output: Tensor) -> None:
        if case not in self.outputs:
            self.outputs[case] = digest({"output": output})


def judgement_of(component: Component, identifier: str, backend: str) -> Judgement:
    """An obligation on one backend, or on both where it compares them."""
    asked = None if ", " in backend else backend
    (found,) = judgements(component, component.contract(), identifier, asked, Selection())
    return found


def tried(component: Component, identifier: str, backend: str) -> Tried:
    """Level 2: the obligation on the cases written down, then its planted faults."""
    judgement, seen = judgement_of(component, identifier, backend), Seen()
    found = judged(replace(judgement, setting=replace(judgement.setting, watch=seen.watch)), judgement.cases)
    calls = found.inputs if judgement.promise == "order" else found.judged
    return what_was_tried(judgement, judgement.cases, found, seen, calls)


def what_was_tried(judgement: Judgement, cases: Sequence[Case], found: Outcome, seen: Seen, calls: int) -> Tried:
    """The outcome on the cases, with the planted faults tried on the same where it holds."""
    if found.verdict is Verdict.COULD_NOT_BE_JUDGED:
        raise UnjudgedError(found.detail)
    holds = found.verdict is Verdict.HOLDS
    killed = {name: text for name in judgement.mutants if (text := _killed(judgement, name, cases))} if holds else {}
    return Tried(
        holds=holds,
        cases=found.cases,
        calls=calls,
        classes=found.recipes,
        killed=killed,
        detail=found.detail,
        planted=len(judgement.mutants),
        result=_result(holds, cases, seen, killed),
    )


def judged(judgement: Judgement, cases: Iterable[Case]) -> Outcome:
    if judgement.check is None:
        raise ValueError(f"{judgement.subject}: no check for {judgement.promise!r} exists yet")
    return outcome(judgement.check(judgement.setting, cases))


def _killed(judgement: Judgement, mutant: str, cases: Sequence[Case]) -> str:
    """The input that killed a mutant, or "". A crash shows nothing, and a mutant that is the subject is none."""
    importable = judgement.mutants[mutant]
    function = import_object(importable)
    if function is judgement.setting.function:
        return ""
    planted = replace(judgement, setting=replace(judgement.setting, function=function, importable=importable))
    remaining = iter(cases)
    while part := list(islice(remaining, SLICE)):
        result = judged(planted, part)
        if result.raised:
            return ""
        if result.verdict is Verdict.DOES_NOT_HOLD:
            return result.detail.partition(":")[0]
    return ""


def _result(holds: bool, cases: Sequence[Case], seen: Seen, killed: Iterable[str]) -> str:
    """What may not differ anywhere. Which input killed a fault is left out: some faults are faults of chance."""
    whole = hashlib.sha256(f"{'holds' if holds else 'does not hold'}\n".encode())
    for case in cases if holds else ():
        whole.update(f"{case} {seen.outputs.get(case, '')}\n".encode())
    whole.update(" ".join(sorted(killed)).encode())
    return whole.hexdigest()
