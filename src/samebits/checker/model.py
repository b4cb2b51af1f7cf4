"""Judges a whole language model: batch, padding, chunk, cache and repeat, logits and gradients compared as bits.

A sequence alone is the reference; every other way to run it must give its bits. Where it does not, the first module and
operation at which the two runs part are named. Knows no model and no operator."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn

from samebits.checker.driving import DEVICES, said
from samebits.checker.environment import environment, unavailable
from samebits.checker.model_forms import LENGTH, Form, alone, draw, forms, run
from samebits.checker.model_loading import load_model
from samebits.checker.model_meaning import Meaning
from samebits.checker.model_parting import parting
from samebits.checker.planning import check_words
from samebits.contracts.language import FORMATS
from samebits.contracts.registry import nearest
from samebits.invariant import InvariantError, invariant_mode
from samebits.numerics.bits import compare
from samebits.records.report import Finding, Report, UnjudgedError, Verdict

PROMISES = ("repeat", "batch", "padding", "chunk", "cache")
Tell = Callable[[str], None]


def check_model(
    source: str,
    *,
    promises: Sequence[str] | None = None,
    backend: str = "cpu",
    format: str = "float32",
    stock: bool = False,
    tell: Tell = lambda _: None,
) -> Report:
    """Loads a model (a folder, a .gguf file, a known name) and judges it; `stock` leaves invariant mode out."""
    check_words(promises, backend)
    for promise in promises or ():
        if promise not in PROMISES:
            raise ValueError(f"a model is not judged by {promise!r}; {nearest(promise, list(PROMISES))}")
    if format not in FORMATS:
        raise ValueError(f"format={format!r} is unknown; allowed: {', '.join(FORMATS)}")
    lack = unavailable(backend, component=True)
    wanted = tuple(promises or PROMISES)
    command = f"samebits check --model {source} --backend {backend} --format {format}{' --stock' if stock else ''}"
    try:
        if lack:
            raise UnjudgedError(lack)
        tell(f"{source}: loading")
        model = load_model(source, format, DEVICES[backend], stock)
    except UnjudgedError as reason:
        return _report(
            tuple(
                Finding(
                    subject=source,
                    promise=promise,
                    backend=backend,
                    verdict=Verdict.COULD_NOT_BE_JUDGED,
                    cases=0,
                    detail=str(reason),
                )
                for promise in wanted
            )
        )
    return _report(
        judge_model(model, source, promises=wanted, backend=backend, stock=stock, command=command, tell=tell)
    )


def _report(findings: tuple[Finding, ...]) -> Report:
    return Report(findings=findings, environment=environment())


def judge_model(
    model: nn.Module,
    subject: str,
    *,
    promises: Sequence[str] = PROMISES,
    backend: str = "cpu",
    stock: bool = False,
    command: str = "",
    length: int = LENGTH,
    tell: Tell = lambda _: None,
) -> tuple[Finding, ...]:
    """One finding a promise."""
    vocabulary = int(model.config.vocab_size)  # type: ignore[union-attr, arg-type]
    ids = draw(vocabulary, 1, length, 0)[0]
    around: Callable[[], AbstractContextManager] = nullcontext if stock else invariant_mode
    judge = _Judge(model, ids, around)
    findings = []
    for promise in promises:
        tell(f"{subject} {promise}")
        started = time.perf_counter()
        verdict, cases, detail = judge.promise(
            promise, [form for form in forms(ids, vocabulary) if form.promise == promise]
        )
        again = f"{command} --promise {promise}" if command and verdict is Verdict.DOES_NOT_HOLD else ""
        findings.append(
            Finding(
                subject=subject,
                promise=promise,
                backend=backend,
                verdict=verdict,
                cases=cases,
                detail=detail,
                reproduce=again,
                seconds=round(time.perf_counter() - started, 3),
            )
        )
    return tuple(findings)


class _Judge:
    """Holds the sequence's own results, which all forms are compared with."""

    def __init__(self, model: nn.Module, ids: Tensor, around: Callable[[], AbstractContextManager]) -> None:
        self._model, self._around, self._alone = model, around, alone(ids)
        self._meaning = Meaning(model, ids)
        self._reference: dict[str, Tensor] = {}
        self._without_gradients = False

    def promise(self, name: str, ways: list[Form]) -> tuple[Verdict, int, str]:
        """(verdict, comparisons, words). A form that says nothing of the model is no reason to leave the others out."""
        cases, unjudged = 0, ""
        for form in ways:
            try:
                with self._around():
                    count, differs = self._compared(form)
            except (InvariantError, UnjudgedError) as reason:
                unjudged = unjudged or str(reason)
            except Exception as error:
                unjudged = unjudged or f"{form.words}: raised {said(error)}"
            else:
                cases += count
                if differs:
                    return Verdict.DOES_NOT_HOLD, cases, f"{form.words}: {differs}{self._where(form)}"
        if unjudged:
            return Verdict.COULD_NOT_BE_JUDGED, cases, unjudged
        words = "; ".join(form.words for form in ways)
        return Verdict.HOLDS, cases, f"{self._alone.calls[0].stop} tokens; {words}"

    def _compared(self, form: Form) -> tuple[int, str]:
        """How many results were compared, and the first difference; a form without a meaning is an UnjudgedError."""
        if not self._reference or (not form.cached and self._without_gradients):
            self._reference = run(self._model, self._alone, gradients=not form.cached).results
            self._without_gradients = form.cached
        ran = run(self._model, form)
        if not ran.kept:
            raise UnjudgedError(self._meaning.without_cache(form))
        count, differs = _first_difference(self._reference, ran.results)
        if differs and (counted := self._meaning.counted(form, self._reference)):
            count, differs = _first_difference(counted, ran.results)
        if differs and (reason := self._meaning.lacking(form)):
            raise UnjudgedError(reason)
        return count, differs

    def _where(self, form: Form) -> str:
        """The place at which the runs part; gradients part where no forward does."""
        place = parting(self._model, self._alone, form, self._around)
        return f"; the runs part at {place}" if place else "; no module's output differs: only gradients do"


def _first_difference(reference: dict[str, Tensor], found: dict[str, Tensor]) -> tuple[int, str]:
    for count, (name, each) in enumerate(found.items(), 1):
        if difference := compare(reference[name], each):
            return count, f"{name}: {difference}"
    return len(found), ""
