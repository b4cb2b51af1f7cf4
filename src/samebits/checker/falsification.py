"""Levels 2 and 3: an obligation on its written cases or on what is drawn, then each planted fault on the same.

Hands over what was found, with a digest that a replay must give again bit for bit: every case with its outcome and
with the bits of the first output on it, and which planted faults died. Makes no receipt."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from torch import Tensor

from samebits.checker.cases import Case, Selection
from samebits.checker.drawing import drawn, minimised
from samebits.checker.fresh import digest
from samebits.checker.obligations import Judgement, judgements
from samebits.checker.outcome import Outcome, outcome
from samebits.checker.revealing import REPLAYS
from samebits.checker.targets import import_object
from samebits.contracts.language import Domain
from samebits.contracts.registry import Component
from samebits.numerics.replay import REPLAY_RECIPES
from samebits.records.report import UnjudgedError, Verdict

# Mutants meet the drawn cases in slices, so that one that dies early costs little.
SLICE = 64
# Of the ways in which a promise varies a call a drawn case meets so many; ten thousand cases meet each way often.
WAYS = 1
# No more are drawn where a domain hardly ever tries its promise.
MOST_CASES = 160_000


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


@dataclass(slots=True)
class _Seen:
    """The digest of the first output on each case, in the order of the calls."""

    outputs: dict[Case, str] = field(default_factory=dict)

    def watch(self, case: Case, output: Tensor) -> None:
        if case not in self.outputs:
            self.outputs[case] = digest({"output": output})


def tried(component: Component, identifier: str, backend: str, level: int, seed: int) -> Tried:
    """The obligation on one backend (or on both, where it compares them), then its planted faults."""
    contract = component.contract()
    obligation = contract.obligations[identifier]
    domain, seen = contract.domains[obligation.domain], _Seen()
    (judgement,) = judgements(component, contract, identifier, None if ", " in backend else backend, Selection())
    if level == 3:
        judgement = replace(judgement, setting=replace(judgement.setting, ways=WAYS))
    watched = replace(judgement, setting=replace(judgement.setting, watch=seen.watch))
    if level == 3 and obligation.name != "order":
        cases, found = _enough(watched, domain, seed)
    else:
        cases = [*judgement.cases, *(_sizes(judgement, domain, seed) if level == 3 else ())]
        found = _outcome(watched, cases)
    if found.verdict is Verdict.COULD_NOT_BE_JUDGED:
        raise UnjudgedError(found.detail)
    holds, detail = found.verdict is Verdict.HOLDS, found.detail
    killed = {name: text for name in judgement.mutants if (text := _killed(judgement, name, cases))} if holds else {}
    if not holds and level == 3 and found.case is not None and obligation.name != "order":
        small = minimised(found.case, domain, lambda case: _outcome(judgement, [case]).verdict is Verdict.DOES_NOT_HOLD)
        detail = _outcome(judgement, [small]).detail
    return Tried(
        # An order is measured by probes that no recipe makes: each vector on which it is replayed is a call.
        holds=holds,
        cases=found.cases,
        calls=found.inputs if obligation.name == "order" else found.judged,
        classes=_classes(cases),
        killed=killed,
        detail=detail,
        planted=len(obligation.mutants),
        result=_result(holds, cases, seen, killed),
    )


def _formats(judgement: Judgement, domain: Domain) -> list[str]:
    formats = [each for each in domain.formats if each in judgement.setting.orders]
    return ["float32"] if judgement.promise == "device" else formats


def _enough(judgement: Judgement, domain: Domain, seed: int) -> tuple[list[Case], Outcome]:
    """Drawn cases, until so many as are asked for have tried the promise: one row alone has no chunks."""
    wanted, formats = domain.draw.calls, _formats(judgement, domain)
    cases = drawn(domain, formats, wanted, seed)
    found = _outcome(judgement, cases)
    while found.verdict is Verdict.HOLDS and found.judged < wanted and len(cases) < MOST_CASES:
        more = drawn(domain, formats, 2 * len(cases), seed)[len(cases) :]
        if not more:
            break
        added = _outcome(judgement, more)
        cases = [*cases, *more]
        found = replace(added, cases=found.cases + added.cases, judged=found.judged + added.judged)
    return cases, found


def _sizes(judgement: Judgement, domain: Domain, seed: int) -> list[Case]:
    """Of drawn cases those of another size each, as many as replay so many vectors; a sum has two terms at least."""
    found: dict[tuple[str, tuple[int, ...]], Case] = {}
    for case in drawn(domain, _formats(judgement, domain), domain.draw.calls, seed):
        if case.shape[1] > 1:
            found.setdefault((case.format, case.shape[:2]), case)
    return list(found.values())[: -(-domain.draw.calls // (min(REPLAYS.values()) * len(REPLAY_RECIPES)))]


def _outcome(judgement: Judgement, cases: Sequence[Case]) -> Outcome:
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
        result = _outcome(planted, part)
        if result.raised:
            return ""
        if result.verdict is Verdict.DOES_NOT_HOLD:
            return result.detail.partition(":")[0]
    return ""


def _classes(cases: Iterable[Case]) -> dict[str, int]:
    found: dict[str, int] = {}
    for case in cases:
        found[case.recipe] = found.get(case.recipe, 0) + 1
    return dict(sorted(found.items()))


def _result(holds: bool, cases: Sequence[Case], seen: _Seen, killed: Iterable[str]) -> str:
    """What may not differ anywhere. Which input killed a fault is left out: some faults are faults of chance."""
    whole = hashlib.sha256(f"{'holds' if holds else 'does not hold'}\n".encode())
    for case in cases if holds else ():
        whole.update(f"{case} {seen.outputs.get(case, '')}\n".encode())
    whole.update(" ".join(sorted(killed)).encode())
    return whole.hexdigest()
