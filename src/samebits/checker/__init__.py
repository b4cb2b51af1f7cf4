"""Judges a component by its contract, searches anyone's function for a difference, reveals how a function adds.

targets.py      what a user names: components, specs, functions
planning.py     which promises will be judged, on which inputs
judging.py      carries out a plan, planted faults included
promises/       one function a promise
adversary/      anyone's function: calls that must agree, in processes of their own
driving.py      calls the function, forward and backward; cases.py makes its inputs; outcome.py adds up
revealing.py    the order of one row, through a spec; special_terms.py replays it where zeros and subnormals are
environment.py  the machine a result was found on"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from torch import Tensor

from samebits.checker import special_terms
from samebits.checker.adversary import origin_of, origin_of_text
from samebits.checker.adversary.likeness import form_of, order_of_probes
from samebits.checker.adversary.origins import ImportFailedError, load
from samebits.checker.adversary.serving import parameters_of
from samebits.checker.cases import Selection
from samebits.checker.driving import DEVICES, CallError, Setting, said
from samebits.checker.judging import execute
from samebits.checker.planning import Plan, check_words, plan_component, plan_function
from samebits.checker.revealing import reveal_row, reveal_sum
from samebits.checker.targets import (
    OPERATORS,
    Home,
    aliases,
    all_specs,
    find_spec,
    import_function,
    looks_like_path,
    positional,
    specs,
)
from samebits.contracts.language import FORMATS, Contract
from samebits.contracts.registry import Component, nearest
from samebits.contracts.spec import OperatorSpec
from samebits.numerics.reveal import Revelation
from samebits.records.report import Report, UnjudgedError

__all__ = ["OPERATORS", "Plan", "Selection", "check", "execute", "has_rows", "plan", "reveal"]


def check(
    target: str | Component | Contract | Callable[..., Any],
    like: str | None = None,
    *,
    promises: Sequence[str] | None = None,
    backend: str | None = None,
    formats: Sequence[str] | None = None,
    shape: Sequence[int] | None = None,
    recipe: str | None = None,
    seed: int | None = None,
    seconds: float | None = None,
    case: str | None = None,
    order: str | None = None,
    home: Home = OPERATORS,
) -> Report:
    """Judges one of our operators (by name), or any function: itself, its import path, or ./file.py:fn.

    Without `promises` all that can be asked; without `backend` every backend of an operator, and the CPU for a
    function. `like` names the operator that a function computes, where its name or its signature does not tell.
    `formats`, `shape`, `recipe` and `seed` narrow the inputs. A function is searched for a difference for `seconds`
    (30); `case` is one line that an earlier report printed; `order` is an order that the function declares."""
    selection = Selection(
        shape=tuple(shape) if shape else None, recipe=recipe, formats=tuple(formats) if formats else None, seed=seed
    )
    work = plan(
        target,
        like,
        promises=promises,
        backend=backend,
        selection=selection,
        seconds=seconds,
        case=case,
        order=order,
        home=home,
    )
    return execute(work, home=home)


def plan(
    target: str | Component | Contract | Callable[..., Any],
    like: str | None = None,
    *,
    promises: Sequence[str] | None = None,
    backend: str | None = None,
    selection: Selection | None = None,
    seconds: float | None = None,
    case: str | None = None,
    order: str | None = None,
    home: Home = OPERATORS,
) -> Plan:
    """What `check` would do. A function is not imported for it."""
    component = find_component(target, home)
    if component is not None:
        for name, value in (("seconds", seconds), ("case", case), ("order", order)):
            if value is not None:
                raise ValueError(
                    f"{component.name}: {name} is for someone's function; an operator is judged by its contract"
                )
        return plan_component(component, promises=promises, backend=backend, like=like, selection=selection)
    assert isinstance(target, str) or callable(target)
    origin = origin_of_text(target) if isinstance(target, str) else origin_of(target)
    return plan_function(
        origin,
        home,
        like=like,
        promises=promises,
        backend=backend,
        selection=selection,
        seconds=seconds,
        case=case,
        order=order,
    )


def find_component(target: object, home: Home = OPERATORS) -> Component | None:
    """The component a target names, or None for a function. What names neither is a ValueError."""
    known = home.components()
    if isinstance(target, Component):
        return target
    if isinstance(target, Contract):
        return next((each for each in known.values() if each.folder == target.path.parent), None) or _unknown(
            str(target.path), known
        )
    if isinstance(target, str):
        if target in known:
            return known[target]
        return None if looks_like_path(target) else _unknown(target, known)
    if not callable(target):
        raise ValueError(f"a component, its name or a function can be judged; got {type(target).__name__}")
    return None


def _unknown(name: str, known: dict[str, Component]) -> Component:
    raise ValueError(
        f"no component is called {name!r}; {nearest(name, list(known))}; a function is named like mypkg.mod:fn"
    )


def reveal(
    function: str | Callable[..., Any],
    n: int,
    rows: Sequence[int] = (1,),
    like: str | None = None,
    *,
    format: str = "float32",
    backend: str = "cpu",
    home: Home = OPERATORS,
) -> dict[int, Revelation]:
    """The order in which a function adds `n` terms, for each number of rows in a batch (its first row is asked).

    A function without `like` and without a spec's name is taken as a plain sum: a tensor of n values to one number."""
    check_words(None, backend)
    if format not in FORMATS:
        raise ValueError(f"format={format!r} is unknown; allowed: {', '.join(FORMATS)}")
    if n < 2 or not rows or min(rows) < 1:
        raise ValueError(f"reveal: at least 2 terms and 1 row are needed, got n={n}, rows={list(rows)}")
    function, like = _revealed_function(function, like, home)
    own = getattr(function, "__name__", "")
    try:
        if not has_rows(function, like, home):
            if tuple(rows) != (1,):
                raise ValueError(
                    f"cannot infer an operator for {own or repr(function)!r} to reveal with rows={list(rows)}; pass"
                    f" `like` (--like): {', '.join(all_specs(home))}"
                )
            called = _answering(function)
            found = reveal_sum(called, n, format, DEVICES[backend])
            return {1: special_terms.of_sum(called, found, n, format, DEVICES[backend])}
        spec, component = find_spec(like or own, home)
        order = order_of_probes(spec, component)
        called = _answering(_taking(positional(function), spec, order, own or repr(function)))
        setting = Setting(function=called, spec=spec, backend=backend)
        return {
            size: special_terms.of_row(setting, reveal_row(setting, n, size, 0, format), n, size, format)
            for size in rows
        }
    except CallError as reason:
        raise ValueError(f"{own or function!r}: {reason}") from reason


def _taking(function: Callable[..., Any], spec: OperatorSpec, order: Sequence[str], name: str) -> Callable[..., Any]:
    """The function behind the call that a probe makes: what it insists on beside, as on a bias, is zero."""
    parameters = parameters_of(function)
    form = form_of(spec, parameters, name)
    insists = {each for each, _, required in parameters or () if required}
    beside = {each: value for each, value in form.scalars.items() if each in insists}
    needed = len(form.order) - len(form.optional)

    def called(*tensors: Tensor) -> Any:
        given = [*tensors, *(tensors[1].new_zeros(len(tensors[1])) for _ in range(needed - len(tensors)))]
        named = dict(zip([each for each in order if each in form.order], given, strict=False))
        # What a probe hands over behind the operator's own arguments, an epsilon, goes by place, and once.
        more = given[len(form.order) :]
        by_name = {form.keywords[each]: value for each, value in named.items() if each in form.keywords}
        by_place = [named[each] for each in form.order if each in named and each not in form.keywords]
        return function(*by_place, *more, **by_name, **({} if more else beside))

    return called


def _answering(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose wish to end this process is an error like any other, and whose answer is numbers."""

    def called(*arguments: Any) -> Any:
        try:
            answer = function(*arguments)
        except SystemExit as error:
            raise RuntimeError(f"asked to end the process by SystemExit: {error}") from error
        if not isinstance(answer, (Tensor, float, int)):
            raise TypeError(f"its result is {type(answer).__name__}; a Tensor or a number is needed")
        return answer

    return called


def _revealed_function(
    target: str | Callable[..., Any], like: str | None, home: Home
) -> tuple[Callable[..., Any], str | None]:
    """A component's name stands for its first subject whose sum can be seen."""
    if not isinstance(target, str):
        return target, like
    component = find_component(target, home)
    if component is None:
        return load_here(target), like
    for subject in component.contract().subjects.values():
        if specs(component)[subject.spec].probe is not None and like in (None, subject.spec):
            return import_function(subject.object), subject.spec
    asked = f"like {like!r} " if like else ""
    raise ValueError(f"{component.name}: no function {asked}shows its sum; specs: {', '.join(specs(component))}")


def load_here(target: str) -> Callable[..., Any]:
    """A function by its import path or file, in this process; one that cannot be had is a ValueError."""
    try:
        return load(asdict(replace(origin_of_text(target), function=None)))
    except ImportFailedError as error:
        raise ValueError(str(error)) from error
    except (Exception, SystemExit) as error:
        why = said(error) if isinstance(error, Exception) else f"SystemExit: {error}"
        raise UnjudgedError(f"{target} cannot be imported: {why}") from error


def has_rows(target: str | Callable[..., Any], like: str | None, home: Home = OPERATORS) -> bool:
    """Whether `reveal` drives this target through a spec, whose calls have rows, or takes it as a plain sum."""
    function, like = _revealed_function(target, like, home)
    own = getattr(function, "__name__", "")
    return like is not None or aliases(home).get(own, own) in all_specs(home)
