"""The promises that a spec itself knows other ways to ask for: a cache, chunks of a prompt, a packed batch.

The plain call is made once; every other form must give its bits, forward and, where the form has them, backward."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from samebits.checker.cases import Case
from samebits.checker.driving import CallError, Setting, begin, difference, everything, said, some_ways
from samebits.checker.outcome import Compared
from samebits.records.report import UnjudgedError

CaseCheck = Callable[[Setting, Case], Iterator[Compared]]


def forms(promise: str, rows_check: CaseCheck | None = None) -> CaseCheck:
    """The check of `promise`: that of independent rows, where there is one, and the spec's own forms."""

    def check(setting: Setting, case: Case) -> Iterator[Compared]:
        if promise not in setting.spec.forms and rows_check is None:
            raise UnjudgedError(f"{setting.spec.name} knows no other form of a call that would try {promise!r}")
        checks = [] if rows_check is None else [rows_check]
        if promise in setting.spec.forms:
            checks.append(partial(_other_forms, promise))
        for each in checks if setting.ways is None else [_one_of(checks, case)]:
            yield from each(setting, case)

    return check


def _one_of(checks: Sequence[CaseCheck], case: Case) -> CaseCheck:
    """Chosen by another number than the check's own way is: by the same one, some pairs of both would never be met."""
    return random.Random(f"the check of {case}").choice(checks)


def _other_forms(promise: str, setting: Setting, case: Case) -> Iterator[Compared]:
    prepared, whole = begin(setting, case, everything(setting.spec))
    arguments, dy = prepared.arguments, prepared.cotangent
    asked = list(setting.spec.forms[promise](setting.function, arguments, dy, setting.backend))
    for words, ask in some_ways(setting, case, asked):
        try:
            results = ask()
        except Exception as error:  # the function under judgement ran in there: what it raises is a finding
            raise CallError(f"raised {said(error)}") from error
        differs = difference({name: whole[name] for name in results}, results)
        yield Compared(case, f"{words} against one plain call: {differs}" if differs else "")
