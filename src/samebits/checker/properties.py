"""Judges a predicate that is not a promise: each case becomes a recorded call, and the predicate says what is wrong.

Knows no operator and no predicate by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from torch import Tensor

from samebits.checker.cases import Case
from samebits.checker.driving import CallError, Setting, made, said
from samebits.checker.outcome import CaseError, Compared
from samebits.checker.promises import CHECKS, Check
from samebits.checker.targets import import_function
from samebits.contracts.call import Inputs, Recorder
from samebits.contracts.language import PROMISES, Obligation, Tolerance
from samebits.contracts.orders import sum_error
from samebits.contracts.predicates import PREDICATES


def check_of(obligation: Obligation) -> Check | None:
    """What executes an obligation: the promise's check, or its predicate on calls. None: nothing does yet."""
    if obligation.name in PROMISES:
        return CHECKS.get(obligation.name)
    predicate = PREDICATES.get(obligation.name) or import_function(obligation.name)
    return partial(_judged, predicate=predicate, tolerance=obligation.tolerance, parameters=obligation.parameters)


def _judged(
    setting: Setting,
    cases: Iterable[Case],
    *,
    predicate: Callable[..., str],
    tolerance: Tolerance,
    parameters: dict[str, Any],
) -> Iterator[Compared]:
    recorder = recording(setting)
    for case in cases:
        arguments = made(setting, case)
        inputs = Inputs(shape=case.shape, recipe=case.recipe, format=case.format, seed=case.seed, ways=setting.ways)
        try:
            call = recorder.record(inputs, arguments, partial(_once, setting, case))
            difference = predicate(call, tolerance, **parameters)
        except Exception as error:  # the function under judgement ran in there: what it raises is a finding
            raise CaseError(case, CallError(f"raised {said(error)}")) from error
        if not recorder.looks:
            raise CaseError(case, CallError("was not looked at: the predicate read no output and asked for no call"))
        if setting.watch is not None:
            setting.watch(case, call.output)
        yield Compared(case, difference)


def _once(setting: Setting, case: Case, run: Callable[[], Tensor]) -> Tensor:
    """The first output of a case: one call for all predicates that are tried on it side by side."""
    if setting.recent is None:
        return run()
    return setting.recent.of("output", setting.backend, case, run).clone()


def recording(setting: Setting) -> Recorder:
    """The setting's function behind a recorder."""
    if setting.reference is None:
        raise ValueError(f"{setting.spec.name}: a predicate needs the contract's equation and none was given")
    spec, orders = setting.spec, setting.orders
    named = (*spec.row_arguments, *spec.shared_arguments) if spec.differentiable else ()
    return Recorder(
        setting.function,
        backend=setting.backend,
        reference=setting.reference,
        sum_error=lambda format, terms: sum_error(orders[format], terms),
        differentiable=[name for name in named if name not in spec.without_gradient],
    )
