"""Makes receipts: runs obligations at levels 1 to 4 and writes down what was run, on what, with which outcome.

Runs what is stale or what is asked; decides no level, which is the ladder's to compute."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from samebits.checker.cases import Case, Selection
from samebits.checker.drawing import drawn, minimised
from samebits.checker.environment import environment, provers, unavailable
from samebits.checker.outcome import Outcome, outcome
from samebits.checker.planning import Judgement, plan_obligation
from samebits.checker.revealing import REPLAYS
from samebits.checker.targets import import_object
from samebits.contracts.ladder import WHOLE, backends_of
from samebits.contracts.language import Contract, ProofEntry
from samebits.contracts.proof import Proof
from samebits.contracts.receipts import Now, Receipt, expired
from samebits.contracts.registry import Room
from samebits.contracts.sources import checker_digest, contract_digest, obligation_digest, source_digest, top_folder
from samebits.numerics.replay import REPLAY_RECIPES
from samebits.records.packages import require
from samebits.records.report import Verdict

CHECKERS = ("samebits.checker.proving", "samebits.checker.judging", "samebits.checker.outcome")
# Mutants meet the drawn cases in slices, so that one that dies early costs little.
SLICE = 64
# Of the ways in which a promise varies a call a drawn case meets so many; ten thousand cases meet each way often.
WAYS = 2
# No more are drawn where a domain hardly ever tries its promise.
MOST_CASES = 160_000
SEED = 1
LONGEST_DETAIL = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One thing to run: an obligation on a backend at a level, a proof, or the types of a whole room."""

    room: Room
    level: int
    backend: str
    obligation: str = WHOLE
    proof: str = ""

    def __str__(self) -> str:
        return f"{self.proof or self.obligation} level {self.level} {self.backend} ({self.room.name})"


def tasks(room: Room, levels: Sequence[int], backend: str | None = None) -> list[Task]:
    """Everything that can be run for a room, lowest level first."""
    contract, found = room.contract(), []
    if 1 in levels:
        found.append(Task(room=room, level=1, backend="cpu"))
    for level in (2, 3):
        for identifier in contract.obligations if level in levels else ():
            for each in backends_of(contract, identifier):
                if backend in (None, each) or (backend == "triton" and "triton" in each):
                    found.append(Task(room=room, level=level, backend=each, obligation=identifier))
    if 4 in levels and backend in (None, "cpu"):
        found += [Task(room=room, level=4, backend="cpu", proof=identifier) for identifier in contract.proofs]
    return found


def prove(task: Task, rooms: dict[str, Room], seed: int = SEED) -> list[Receipt]:
    """Runs one task; a proof speaks for several obligations and gives a receipt for each."""
    lacks = [unavailable(each, room=True) for each in task.backend.split(", ")]
    if any(lacks):
        raise ValueError(f"{task}: could not be judged: {'; '.join(filter(None, lacks))}")
    if task.level == 1:
        return [_types(task, rooms)]
    if task.level == 4:
        return _proof(task, rooms)
    return [_judged(task, rooms, seed)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Present:
    """What all receipts of a room must agree with at present; gathered once, for reading every source takes a while."""

    source_digest: str
    dependencies: dict[str, str]
    environment: dict[str, str]


def present(room: Room, rooms: dict[str, Room]) -> Present:
    return Present(source_digest=source_digest(room.folder, room.package),
                   dependencies=dependencies(room.contract(), rooms), environment=environment())  # fmt: skip


def now(room: Room, identifier: str, facts: Present) -> Now:
    """What a receipt of this obligation must agree with at present."""
    contract = room.contract()
    words = contract_digest(contract) if identifier == WHOLE else obligation_digest(contract, identifier)
    return Now(obligation_digest=words, source_digest=facts.source_digest, dependencies=facts.dependencies,
               environment=facts.environment)  # fmt: skip


def dependencies(contract: Contract, rooms: dict[str, Room]) -> dict[str, str]:
    """Every contract below this one, with one digest of its words and its source."""
    found: dict[str, str] = {}
    waiting = list(contract.depends_on)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        if name not in rooms:
            raise ValueError(f"{contract.path}: depends_on names {name!r}, which no contract is called")
        other = rooms[name]
        found[name] = f"{contract_digest(other.contract())[:32]}{source_digest(other.folder, other.package)[:32]}"
        waiting += other.contract().depends_on
    return found


def _receipt(task: Task, identifier: str, rooms: dict[str, Room], **facts: Any) -> Receipt:
    facts_now = now(task.room, identifier, present(task.room, rooms))
    return Receipt(
        contract=task.room.name, obligation=identifier, backend=task.backend, level=task.level,
        obligation_digest=facts_now.obligation_digest, source_digest=facts_now.source_digest,
        dependencies=dict(facts_now.dependencies), environment={**facts_now.environment, **provers()},
        checker_digest=checker_digest(CHECKERS), **{**facts, "detail": _short(facts["detail"])},
    )  # fmt: skip


def _short(detail: str) -> str:
    """What a reader can take in: a draw lists thousands of shapes."""
    return detail if len(detail) <= LONGEST_DETAIL else f"{detail[:LONGEST_DETAIL]} ..."


def _types(task: Task, rooms: dict[str, Room]) -> Receipt:
    """Strict types of the room's own modules, by mypy; a missing mypy is an error, never a pass."""
    require("level 1", "mypy")
    started = time.perf_counter()
    room = task.room
    files = sorted(room.folder.glob("*.py"))
    root = top_folder(room.folder, room.package)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--explicit-package-bases",
               "--namespace-packages", "--package", room.package]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "MYPYPATH": str(root)})
    if done.returncode not in (0, 1):
        said = " ".join((done.stderr or done.stdout).split())[-300:]
        raise ValueError(f"{task}: could not be judged: mypy ended with {done.returncode}: {said}")
    detail = done.stdout.strip().splitlines()
    first = detail[-1] if done.returncode == 0 else detail[0]
    return _receipt(task, WHOLE, rooms, method="types", by="mypy --strict", holds=done.returncode == 0,
                    cases=len(files), detail=first, seconds=round(time.perf_counter() - started, 3))  # fmt: skip


def _judged(task: Task, rooms: dict[str, Room], seed: int) -> Receipt:
    """The obligation on its examples and written cases, or on what is drawn; then each mutant on the same."""
    started = time.perf_counter()
    room, contract = task.room, task.room.contract()
    obligation, domain = (
        contract.obligations[task.obligation],
        contract.domains[contract.obligations[task.obligation].domain],
    )
    (judgement,) = plan_obligation(room, contract, task.obligation, obligation, _backend(task), Selection()).judgements
    measured = obligation.name == "order"
    cases, inputs = judgement.cases, len(judgement.cases)
    if task.level == 3:
        formats = [each for each in domain.formats if each in judgement.setting.orders]
        formats = ["float32"] if obligation.name == "device" else formats
        cases = drawn(domain, formats, domain.draw.calls, seed)
        judgement = replace(judgement, setting=replace(judgement.setting, ways=WAYS))
        if measured:
            cases = [*judgement.cases, *_sizes(cases, domain.draw.calls)]
    result = _outcome(judgement, cases)
    if measured:
        inputs = result.inputs
    elif task.level == 3:
        inputs = result.judged
        while result.verdict is Verdict.HOLDS and inputs < domain.draw.calls and len(cases) < MOST_CASES:
            # Some cases could not try the promise: one row alone has no chunks.
            more = drawn(domain, formats, 2 * len(cases), seed)[len(cases) :]
            cases, result = [*cases, *more], _outcome(judgement, more)
            inputs += result.judged
    killed: dict[str, str] = {}
    if result.verdict is Verdict.HOLDS:
        killed = {name: text for name in judgement.mutants if (text := _killed(judgement, name, cases))}
    detail = result.detail
    if result.verdict is Verdict.DOES_NOT_HOLD and task.level == 3 and result.case is not None and not measured:
        small = minimised(
            result.case, domain, lambda case: _outcome(judgement, [case]).verdict is Verdict.DOES_NOT_HOLD
        )
        detail = _outcome(judgement, [small]).detail
    return _receipt(
        task, task.obligation, rooms, method={2: "examples", 3: "draws"}[task.level], by=obligation.name,
        holds=result.verdict is Verdict.HOLDS, seed=seed if task.level == 3 else 0, cases=result.cases, inputs=inputs,
        classes=_classes(cases), planted=len(obligation.mutants), killed=killed, detail=detail,
        seconds=round(time.perf_counter() - started, 3),
    )  # fmt: skip


def _sizes(cases: Sequence[Case], inputs: int) -> list[Case]:
    """Of drawn cases those of another size each, as many as replay so many vectors; a sum has two terms at least.

    An order is measured by probes that no recipe makes: its inputs are the vectors on which it is replayed."""
    found: dict[tuple[str, tuple[int, ...]], Case] = {}
    for case in cases:
        if case.shape[1] > 1:
            found.setdefault((case.format, case.shape[:2]), case)
    return list(found.values())[: -(-inputs // (min(REPLAYS.values()) * len(REPLAY_RECIPES)))]


def _backend(task: Task) -> str | None:
    """What planning is asked for: `device` compares both."""
    return None if ", " in task.backend else task.backend


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


def _proof(task: Task, rooms: dict[str, Room]) -> list[Receipt]:
    """One run of a proof; a receipt for each obligation it speaks for."""
    started = time.perf_counter()
    entry: ProofEntry = task.room.contract().proofs[task.proof]
    shown: Proof = import_object(entry.object)()
    if not isinstance(shown, Proof) or shown.kind != entry.kind:
        raise ValueError(f"{task}: {entry.object} gave {getattr(shown, 'kind', type(shown).__name__)!r}; "
                         f"the contract says {entry.kind!r}")  # fmt: skip
    if shown.undecided and not shown.witness:
        raise ValueError(f"{task}: {shown}")
    seconds = round(time.perf_counter() - started, 3)
    return [
        _receipt(task, identifier, rooms, method=shown.kind, by=entry.object, holds=shown.proved, cases=shown.cases,
                 inputs=shown.expected, planted=shown.planted,
                 killed={f"twin {number + 1}": entry.object for number in range(shown.caught)}, bound=shown.bound,
                 detail=str(shown), seconds=seconds)
        for identifier in entry.obligations
    ]  # fmt: skip


def stale(task: Task, receipts: Sequence[Receipt], facts: Present) -> bool:
    """Whether a task has no valid receipt for everything it would speak for."""
    contract = task.room.contract()
    spoken = contract.proofs[task.proof].obligations if task.proof else [task.obligation]
    by = contract.proofs[task.proof].object if task.proof else None
    for identifier in spoken:
        wanted = now(task.room, identifier, facts)
        valid = [
            each for each in receipts
            if (each.obligation, each.backend, each.level) == (identifier, task.backend, task.level)
            and by in (None, each.by) and each.holds and not expired(each, wanted)
        ]  # fmt: skip
        if not valid:
            return True
    return False


def attempt(task: Task, rooms: dict[str, Room], seed: int) -> list[Receipt] | str:
    """The receipts of a task, or in one line why it could not be judged."""
    try:
        return prove(task, rooms, seed)
    except (ValueError, RuntimeError, ImportError) as error:
        return f"{task}: {' '.join(str(error).split())}"
