"""Makes receipts: runs obligations at levels 1 to 4 and writes down what was run, on what, with which outcome.

Runs what it is asked; decides no level, which is the ladder's to compute."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from samebits.checker.environment import unavailable
from samebits.checker.falsification import Tried, tried
from samebits.checker.present import Present
from samebits.checker.proofs import carried_out
from samebits.checker.source_facts import RUNNING
from samebits.checker.streaming import alike, tried_together
from samebits.contracts.ladder import about, backends_of
from samebits.contracts.language import Contract, ProofEntry
from samebits.contracts.receipts import FRESH, WHOLE, Receipt, compared
from samebits.contracts.registry import Component
from samebits.contracts.store import Store
from samebits.records.packages import require
from samebits.records.report import UnjudgedError

SEED: Final = 1
LONGEST_DETAIL: Final = 300
# Seconds of what was never run here: a proof may take minutes, so it goes first.
GUESSES: Final = {1: 30.0, 2: 5.0, 3: 15.0, 4: 300.0}
# Of several jobs each should have so many tasks that the last ones end together.
TASKS_A_JOB: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One thing to run: obligations on a backend at a level, a proof, or the types of a whole contract."""

    component: Component
    level: int
    backend: str
    """For a proof and for types: all backends that it is about."""
    obligations: tuple[str, ...] = (WHOLE,)
    """One; at level 3 all that are drawn for together."""
    proof: str = ""

    def __str__(self) -> str:
        return f"{self.name} level {self.level} {self.backend} ({self.component.name})"

    @property
    def name(self) -> str:
        """By what it is asked for: the id of the proof or of the obligations."""
        return self.proof or " ".join(self.obligations)

    @property
    def entry(self) -> ProofEntry | None:
        return self.component.contract().proofs[self.proof] if self.proof else None

    @property
    def method(self) -> str:
        return self.entry.kind if self.entry else {1: "types", 2: "examples", 3: "draws"}[self.level]

    def speaks_for(self) -> Iterator[tuple[str, str]]:
        """Every obligation and backend that it gives a receipt for."""
        contract, entry = self.component.contract(), self.entry
        if entry is not None:
            for identifier in entry.obligations:
                for backend in backends_of(contract, identifier):
                    if set(backend.split(", ")) <= set(entry.backends):
                        yield identifier, backend
        elif self.level == 1:
            yield from ((WHOLE, backend) for backend in self.backend.split(", "))
        else:
            yield from ((identifier, self.backend) for identifier in self.obligations)

    def lacks(self) -> str:
        """Why it cannot run here, or ""."""
        backends = self.backend.split(", ") if self.method in RUNNING else []
        return "; ".join(filter(None, (unavailable(each, component=True) for each in backends)))


def tasks(component: Component, levels: Sequence[int], backend: str | None = None) -> list[Task]:
    """Everything there is to run for a contract on a backend, or on all of them."""
    contract, found = component.contract(), []
    if 1 in levels:
        found.append(Task(component=component, level=1, backend=", ".join(contract.backends)))
    for level in sorted({2, 3} & set(levels)):
        for identifier in contract.obligations:
            for each in backends_of(contract, identifier):
                if backend is None or about(each, backend):
                    found.append(Task(component=component, level=level, backend=each, obligations=(identifier,)))
    for name, entry in contract.proofs.items() if 4 in levels else ():
        task = Task(component=component, level=4, backend=", ".join(entry.backends), proof=name)
        if backend is None or any(about(each, backend) for _, each in task.speaks_for()):
            found.append(task)
    return found


def together(work: Sequence[Task], jobs: int) -> list[Task]:
    """The same work in fewer tasks: obligations that are drawn for alike share their calls. None is so long that most
    of the jobs would wait for it; which obligations are tried beside it changes nothing about one."""
    drawing = [task for task in work if task.level == 3]
    most = max(1, -(-len(drawing) // (TASKS_A_JOB * jobs))) if jobs > 1 else max(1, len(drawing))
    groups: dict[tuple[str, ...], list[Task]] = {}
    for task in drawing:
        contract, (identifier,) = task.component.contract(), task.obligations
        groups.setdefault((task.component.name, *alike(contract, identifier, task.backend)), []).append(task)
    return [task for task in work if task.level != 3] + [
        replace(group[0], obligations=tuple(each.obligations[0] for each in group[start : start + most]))
        for group in groups.values()
        for start in range(0, len(group), most)
    ]


def unproved(task: Task, receipts: Sequence[Receipt], present: Present, *, here: bool = False) -> bool:
    """Whether something that a task would speak for has no receipt that counts; with `here`, none made here."""
    contract = task.component.contract()
    for identifier, backend in task.speaks_for():
        by = _by(contract, task, identifier)
        own = [
            each
            for each in receipts
            if (each.obligation, each.backend, each.level, each.by) == (identifier, backend, task.level, by)
        ]
        judged = [compared(each, present.of(each)) for each in own if each.holds]
        if not any(each.standing == FRESH if here else each.counts for each in judged):
            return True
    return False


def _by(contract: Contract, task: Task, identifier: str) -> str:
    if task.entry is not None:
        return task.entry.by
    return "mypy --strict" if task.level == 1 else contract.obligations[identifier].name


def seconds_of(task: Task, store: Store) -> float:
    """How long a task took last time, or a guess."""
    known = store.seconds(task.component.name)
    contract = task.component.contract()
    asked = [(identifier, task.level, _by(contract, task, identifier)) for identifier, _ in task.speaks_for()]
    if task.level == 3:
        return sum(known.get(each, GUESSES[3]) for each in asked)
    return next((known[each] for each in asked if each in known), GUESSES[task.level])


def prove(task: Task, components: Mapping[str, Component], seed: int = SEED) -> Iterator[Receipt | str]:
    """Runs one task. Several obligations give a receipt each, or in one line why one could not be judged."""
    if lacks := task.lacks():
        raise ValueError(f"could not be judged: {lacks}")
    present = _present(tuple(components.items()))
    for identifier, backend, found in _found(task, seed):
        if isinstance(found, str):
            yield f"{replace(task, obligations=(identifier,))}: {found}"
            continue
        facts = present.facts(task.component, identifier, backend, task.method, task.entry)
        yield Receipt(
            contract=task.component.name,
            obligation=identifier,
            backend=backend,
            level=task.level,
            method=task.method,
            by=_by(task.component.contract(), task, identifier),
            sources=dict(facts.sources),
            dependencies=dict(facts.dependencies),
            where=dict(facts.where),
            **found,
        )


def _found(task: Task, seed: int) -> Iterator[tuple[str, str, dict[str, Any] | str]]:
    """For each obligation and backend what a receipt says, or why there is none."""
    if task.level == 3:
        for identifier, drawn in tried_together(task.component, task.obligations, task.backend, seed):
            yield identifier, task.backend, drawn if isinstance(drawn, str) else _tried(drawn) | {"seed": seed}
        return
    started = time.perf_counter()
    if task.level == 1:
        found = _types(task)
    elif task.level == 4:
        found = _proof(task)
    else:
        found = _tried(tried(task.component, task.name, task.backend))
    found["seconds"] = round(time.perf_counter() - started, 3)
    for identifier, backend in task.speaks_for():
        yield identifier, backend, found


@cache
def _present(components: tuple[tuple[str, Component], ...]) -> Present:
    """One for all tasks of a process: what it runs, it has imported once."""
    return Present(dict(components))


def _short(detail: str) -> str:
    """What a reader can take in: a draw lists thousands of shapes."""
    return detail if len(detail) <= LONGEST_DETAIL else f"{detail[:LONGEST_DETAIL]} ..."


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _types(task: Task) -> dict[str, Any]:
    """Strict types of the contract's own modules, by mypy; a missing mypy is an error, never a pass."""
    require("level 1", "mypy")
    component = task.component
    files = sorted(component.folder.glob("*.py"))
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--explicit-package-bases",
        "--namespace-packages",
        "--package",
        component.package,
    ]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "MYPYPATH": str(component.root)})
    if done.returncode not in (0, 1):
        said = " ".join((done.stderr or done.stdout).split())[-300:]
        raise ValueError(f"could not be judged: mypy ended with {done.returncode}: {said}")
    holds, lines = done.returncode == 0, done.stdout.strip().splitlines()
    return {
        "holds": holds,
        "cases": len(files),
        "detail": _short(lines[-1] if holds else lines[0]),
        "result": _digest(f"types {holds}"),
    }


def _tried(found: Tried) -> dict[str, Any]:
    return {
        "holds": found.holds,
        "cases": found.cases,
        "calls": found.calls,
        "classes": found.classes,
        "killed": found.killed,
        "planted": found.planted,
        "detail": _short(found.detail),
        "result": found.result,
        "seconds": found.seconds,
    }


def _proof(task: Task) -> dict[str, Any]:
    """One run of a proof."""
    entry = task.entry
    assert entry is not None  # only a proof is asked for at level 4
    shown = carried_out(task.component, entry)
    if shown.undecided and not shown.witness:
        raise UnjudgedError(shown.undecided)
    decided = f"{shown.kind} {shown.proved} {shown.cases} of {shown.expected} {shown.caught} of {shown.planted}"
    return {
        "holds": shown.proved,
        "cases": shown.cases,
        "planted": shown.planted,
        "bound": shown.bound,
        "killed": {f"twin {number + 1}": entry.by for number in range(shown.caught)},
        "detail": _short(str(shown)),
        "result": _digest(f"{decided} {shown.digest}"),
    }


def attempt(task: Task, components: Mapping[str, Component], seed: int = SEED) -> list[Receipt | str]:
    """The receipts of a task; a line of text for each thing that could not be judged."""
    made = list[Receipt | str]()
    try:
        for each in prove(task, components, seed):
            made.append(each)
    except (ValueError, RuntimeError, ImportError, UnjudgedError) as error:
        made.append(f"{task}: {' '.join(str(error).split())}")
    except (Exception, SystemExit) as error:
        # The contract's own code ran in there. Whatever it raises ends this task and no other, and never the command.
        made.append(f"{task}: {type(error).__name__}: {' '.join(str(error).split())}")
    return made
