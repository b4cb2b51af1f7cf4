"""What a check will do, decided before anything runs: one judgement a promise, subject and backend.

Our own operators bring their obligations; someone's function is searched for a difference (see adversary/)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from samebits.checker.adversary import JUDGED, SECONDS, Origin, Request
from samebits.checker.adversary.trial import parse_trial
from samebits.checker.cases import Selection
from samebits.checker.obligations import Judgement, judgements, subject_name
from samebits.checker.targets import Home, find_spec, specs
from samebits.contracts.language import BACKENDS, PROMISES
from samebits.contracts.orders import declared_order
from samebits.contracts.registry import Component, nearest

# Promises about what someone's function alone does not have.
OPERATORS_ONLY = {
    "cache": "a KV cache",
    "micro": "a sum over rows that resumes",
    "device": "two backends",
    "tensor": "ranks",
    "data": "ranks",
    "resume": "a run that is killed",
    "schedule": "messages between ranks",
}
LONGEST_SECONDS = 86_400


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    judgements: tuple[Judgement, ...]
    requests: tuple[Request, ...] = ()
    """Functions of others, each to be searched for a difference."""
    not_asked: tuple[str, ...] = ()
    """Obligations left out, each with its reason: they are neither passes nor failures."""

    def __add__(self, other: Plan) -> Plan:
        return Plan(
            judgements=self.judgements + other.judgements,
            requests=self.requests + other.requests,
            not_asked=self.not_asked + other.not_asked,
        )


def check_words(promises: Sequence[str] | None, backend: str | None, more: Sequence[str] = ()) -> None:
    """Unknown promises and backends are the caller's mistake; `more` are a component's own predicates."""
    for promise in promises or ():
        if promise not in PROMISES and promise not in more:
            raise ValueError(f"unknown promise {promise!r}; {nearest(promise, [*PROMISES, *more])}")
    if backend is not None and backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}; {nearest(backend, list(BACKENDS))}")


def plan_component(
    component: Component,
    *,
    promises: Sequence[str] | None = None,
    backend: str | None = None,
    like: str | None = None,
    selection: Selection | None = None,
) -> Plan:
    """Every obligation of the component's contract that was asked for, on every backend that was asked for."""
    contract, selection = component.contract(), selection or Selection()
    own = [each.word for each in contract.obligations.values() if each.name not in PROMISES]
    check_words(promises, backend, own)
    if like is not None and like not in specs(component):
        raise ValueError(f"{component.name}: no spec is called {like!r}; {nearest(like, list(specs(component)))}")
    plan = Plan(judgements=())
    for identifier, obligation in contract.obligations.items():
        wanted = (promises is None or obligation.word in promises) and (
            like is None or contract.subjects[obligation.subject].spec == like
        )
        if wanted and obligation.name == "device" and backend is not None:
            spec = specs(component)[contract.subjects[obligation.subject].spec]
            reason = f"{subject_name(component, spec)}: device compares both backends and only {backend} was asked for"
            plan += Plan(judgements=(), not_asked=(reason,))
        elif wanted:
            plan += Plan(judgements=tuple(judgements(component, contract, identifier, backend, selection)))
    if not plan.judgements and not plan.not_asked:
        said = f" by {like!r}" if like else ""
        plan = Plan(
            judgements=(), not_asked=(f"{component.name}: {', '.join(promises or PROMISES)} is not promised{said}",)
        )
    return plan


def plan_function(
    origin: Origin,
    home: Home,
    *,
    like: str | None = None,
    promises: Sequence[str] | None = None,
    backend: str | None = None,
    selection: Selection | None = None,
    seconds: float | None = None,
    case: str | None = None,
    order: str | None = None,
) -> Plan:
    """Anyone's function, to be searched for a difference. Words that make no sense are refused before anything runs."""
    check_words(promises, backend)
    if like is not None:
        find_spec(like, home)
    if order is not None:
        declared_order(order, 2)
    if case is not None:
        parse_trial(case)
    if seconds is not None and not 0 < seconds <= LONGEST_SECONDS:
        raise ValueError(f"seconds must be in 0..{LONGEST_SECONDS}, got seconds={seconds}")
    asked = tuple(each for each in PROMISES if each in (promises or JUDGED))
    judged = tuple(each for each in asked if each in JUDGED)
    not_asked = tuple(
        f"{origin.name}: {promise} is about {OPERATORS_ONLY[promise]}, which only our own operators have"
        for promise in asked
        if promise not in JUDGED
    )
    if not judged:
        return Plan(judgements=(), not_asked=not_asked)
    request = Request(
        origin=origin,
        like=like,
        promises=judged,
        backend=backend or "cpu",
        selection=selection or Selection(),
        seconds=seconds or SECONDS,
        case=case,
        order=order,
    )
    return Plan(judgements=(), requests=(request,), not_asked=not_asked)
