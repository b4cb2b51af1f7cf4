"""What a check will do, decided before anything runs: one judgement a promise, subject and backend.

Rooms bring their obligations; a user's function borrows those of the door it is like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from samebits.checker.cases import Case, Selection, cases
from samebits.checker.driving import CallError, Setting
from samebits.checker.promises import CHECKS, Check
from samebits.checker.properties import check_of
from samebits.checker.targets import (
    Home,
    check_signature,
    door_of,
    doors,
    import_function,
    importable_name,
    positional,
)
from samebits.contracts.door import Door
from samebits.contracts.language import BACKENDS, PROMISES, Contract, Domain, Obligation, example_of
from samebits.contracts.registry import Room, nearest

BOTH = "cpu, triton"
# Promises about what only a room has: launch numbers, a resumable sum, a second backend.
ROOMS_ONLY = {"tile": "launch numbers", "micro": "a sum over rows that resumes", "device": "two backends"}


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
    room: bool
    obligation: str
    mutants: dict[str, str]
    """Planted faults: id to importable name."""
    fault_cases: list[Case]
    """What planted faults are tried on: the whole domain, however much a caller narrows it for the subject."""
    command: str
    """The command that asks for this judgement; a case's options are appended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    judgements: tuple[Judgement, ...]
    not_asked: tuple[str, ...] = ()
    """Obligations left out, each with its reason: they are neither passes nor failures."""

    def __add__(self, other: Plan) -> Plan:
        return Plan(judgements=self.judgements + other.judgements, not_asked=self.not_asked + other.not_asked)


def check_words(promises: Sequence[str] | None, backend: str | None, more: Sequence[str] = ()) -> None:
    """Unknown promises and backends are the caller's mistake; `more` are a room's own predicates."""
    for promise in promises or ():
        if promise not in PROMISES and promise not in more:
            raise ValueError(f"unknown promise {promise!r}; {nearest(promise, [*PROMISES, *more])}")
    if backend is not None and backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}; {nearest(backend, list(BACKENDS))}")


def plan_room(room: Room, *, promises: Sequence[str] | None = None, backend: str | None = None, like: str | None = None,
              selection: Selection | None = None) -> Plan:  # fmt: skip
    """Every obligation of the room's contract that was asked for, on every backend that was asked for."""
    contract, selection = room.contract(), selection or Selection()
    own = [each.word for each in contract.obligations.values() if each.name not in PROMISES]
    check_words(promises, backend, own)
    if like is not None and like not in doors(room):
        raise ValueError(f"{room.name}: no door is called {like!r}; {nearest(like, list(doors(room)))}")
    plan = Plan(judgements=())
    for identifier, obligation in contract.obligations.items():
        wanted = (promises is None or obligation.word in promises) and (
            like is None or contract.subjects[obligation.subject].door == like
        )
        if wanted:
            plan += plan_obligation(room, contract, identifier, obligation, backend, selection)
    if not plan.judgements and not plan.not_asked:
        said = f" by {like!r}" if like else ""
        plan = Plan(judgements=(), not_asked=(f"{room.name}: {', '.join(promises or PROMISES)} is not promised{said}",))
    return plan


def plan_obligation(room: Room, contract: Contract, identifier: str, obligation: Obligation, backend: str | None,
                     selection: Selection) -> Plan:  # fmt: skip
    subject = contract.subjects[obligation.subject]
    door = doors(room)[subject.door]
    name = room.name if door.name == room.name else f"{room.name}.{door.name}"
    if obligation.name == "device":
        if backend is not None:
            reason = f"{name}: device compares both backends and only {backend} was asked for"
            return Plan(judgements=(), not_asked=(reason,))
        backends = [BOTH]
    else:
        backends = [each for each in subject.orders if backend in (None, each)]
    function, judgements = import_function(subject.object), []
    examples = [Case(*example_of(text)) for test in obligation.tests for text in contract.tests[test].examples]
    reference = import_function(contract.equations[subject.equation].reference)
    for each in backends:
        orders = subject.orders["cpu" if each == BOTH else each]
        domain = contract.domains[obligation.domain]
        chosen, whole = (
            [case for case in dict.fromkeys((*cases(door, domain, narrowed), *kept)) if case.format in orders]
            for narrowed, kept in ((selection, () if selection.narrows else examples), (Selection(), examples))
        )
        backend_option = "" if each == BOTH else f" --backend {each}"
        judgements.append(Judgement(
            subject=name, promise=obligation.word, backend=each, cases=chosen, room=True, obligation=identifier,
            check=check_of(obligation),
            setting=Setting(function=function, door=door, backend="cpu" if each == BOTH else each, orders=orders,
                            reference=reference, importable=subject.object),
            mutants={mutant: contract.mutants[mutant].object for mutant in obligation.mutants}, fault_cases=whole,
            command=f"samebits check {room.name} --like {door.name} --promise {obligation.word}{backend_option}",
        ))  # fmt: skip
    return Plan(judgements=tuple(judgements))


def plan_function(function: Callable[..., Any], home: Home, *, name: str | None = None, like: str | None = None,
                  promises: Sequence[str] | None = None, backend: str | None = None,
                  selection: Selection | None = None) -> Plan:  # fmt: skip
    """The promises of the room whose door the function is like, on that room's inputs."""
    check_words(promises, backend)
    door, room = door_of(function, like, home)
    importable = name or importable_name(function)
    name = importable.replace(":", ".") if name is None else name
    name = name or getattr(function, "__name__", "") or repr(function)
    called = positional(function)
    check_signature(called, door, name)
    backend, selection = backend or "cpu", selection or Selection()
    setting = Setting(function=called, door=door, backend=backend, importable=importable)
    judgements: list[Judgement] = []
    not_asked: list[str] = []
    for promise, domain in _borrowed(room, door).items():
        if promises and promise not in promises:
            continue
        if promise in ROOMS_ONLY:
            not_asked.append(f"{name}: {promise} is about {ROOMS_ONLY[promise]}, which only a room has")
            continue
        chosen = cases(door, domain, selection)
        if not judgements:
            setting = replace(setting, door=_with_what_it_has(setting, chosen[0]))
        judgements.append(Judgement(
            subject=name, promise=promise, backend=backend, cases=chosen, room=False, obligation="", mutants={},
            check=CHECKS.get(promise),
            fault_cases=[], setting=setting,
            command=_command(name if importable else "", function, door.name, promise, backend),
        ))  # fmt: skip
    if door.differentiable and not setting.door.differentiable:
        not_asked.append(f"{name}: gradients, for its output has none")
    if not judgements and not not_asked:
        not_asked.append(f"{name}: {', '.join(promises or PROMISES)} is not promised by {door.name!r}")
    return Plan(judgements=tuple(judgements), not_asked=tuple(not_asked))


def _borrowed(room: Room, door: Door) -> dict[str, Domain]:
    """Each promise of the room with inputs that fit the door: the door's own, else those of a door with equal axes."""
    contract, listed = room.contract(), doors(room)
    found: dict[str, Domain] = {}
    for own in (True, False):
        for obligation in contract.obligations.values():
            other = listed[contract.subjects[obligation.subject].door]
            fits = other.name == door.name if own else other.shape_axes == door.shape_axes
            if fits and (obligation.name != "order" or door.probe is not None):
                found.setdefault(obligation.name, contract.domains[obligation.domain])
    return {promise: found[promise] for promise in PROMISES if promise in found}


def _command(name: str, function: Callable[..., Any], like: str, promise: str, backend: str) -> str:
    if name:
        return f"samebits check {name} --like {like} --promise {promise} --backend {backend}"
    called = getattr(function, "__name__", "function")
    return f"samebits.check({called}, like={like!r}, promises=[{promise!r}], backend={backend!r})"


def _with_what_it_has(setting: Setting, case: Case) -> Door:
    """The door without gradients where the function's output carries none: forward promises can still be judged."""
    door = setting.door
    if not door.differentiable or (setting.device == "cuda" and not torch.cuda.is_available()):
        return door
    made = door.make(case.shape, case.recipe, case.format, case.seed)
    try:
        given = [
            value.to(setting.device).requires_grad_(name not in door.without_gradient) for name, value in made.items()
        ]
        output = setting.call(*given)
    except CallError:
        return door  # the first promise will say what it raised
    return door if output.requires_grad else replace(door, differentiable=False)
