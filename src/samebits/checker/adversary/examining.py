"""Judges anyone's function: finds out what it is, searches for a difference, makes it small, and says what was covered.

The verdict is made here, from raw bits, in a process that the function never runs in."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from samebits.checker.adversary.again import Again
from samebits.checker.adversary.attempts import FoundError
from samebits.checker.adversary.coverage import TITLES
from samebits.checker.adversary.empty_batch import note_on_no_rows
from samebits.checker.adversary.ledger import Difference
from samebits.checker.adversary.likeness import candidates
from samebits.checker.adversary.one_order import judge_order
from samebits.checker.adversary.origins import Origin
from samebits.checker.adversary.probing import Probed, probe
from samebits.checker.adversary.processes import Stranger
from samebits.checker.adversary.search import Search
from samebits.checker.adversary.shrinking import Shrinker
from samebits.checker.adversary.silent_rows import note_on_sums
from samebits.checker.adversary.situations import PROMISES, Ways, threads_near, ways_of
from samebits.checker.adversary.sizes import named_sizes
from samebits.checker.adversary.trial import Trial, check_names, check_sizes, parse_trial
from samebits.checker.adversary.two_axes import note_on_axes
from samebits.checker.adversary.workers import busy
from samebits.checker.cases import Selection
from samebits.checker.driving import DEVICES
from samebits.checker.environment import environment, unavailable
from samebits.checker.targets import Home
from samebits.contracts.language import FORMATS
from samebits.records.report import Finding, Report, UnjudgedError, Verdict

JUDGED = ("repeat", "batch", "padding", "chunk", "tile", "accuracy", "order")
SECONDS = 30.0
THOROUGH_SECONDS = 600.0
SHRINK_SECONDS = 10.0
OTHER_HASH_SEED = 20011


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What is asked of one function."""

    origin: Origin
    like: str | None = None
    promises: tuple[str, ...] = JUDGED
    backend: str = "cpu"
    selection: Selection = field(default_factory=Selection)
    seconds: float = SECONDS
    shrink_seconds: float = SHRINK_SECONDS
    case: str | None = None
    order: str | None = None
    """The order that the function declares, where it does."""


def examine(request: Request, home: Home, tell: Callable[[str], None] = lambda _: None) -> Report:
    """A report with one finding a promise; a name, a word or a signature that makes no sense is a ValueError."""
    trial = parse_trial(request.case) if request.case else None
    started = time.monotonic()
    lack = unavailable(request.backend, component=False)
    if lack:
        return _unjudged(request, lack, started)
    tell(f"importing {request.origin.name}")
    device = DEVICES[request.backend]
    stranger = Stranger(request.origin, device)
    elsewhere = Stranger(request.origin, device, OTHER_HASH_SEED) if _in_two_processes(request) else None
    try:
        return _examined(request, home, stranger, elsewhere, trial, started, tell)
    except UnjudgedError as reason:
        return _unjudged(request, str(reason), started)
    finally:
        for each in filter(None, (stranger, elsewhere)):
            each.close()


def _in_two_processes(request: Request) -> bool:
    return not request.origin.forks and "repeat" in request.promises and request.backend == "cpu"


def _examined(
    request: Request,
    home: Home,
    stranger: Stranger,
    elsewhere: Stranger | None,
    trial: Trial | None,
    started: float,
    tell: Callable[[str], None],
) -> Report:
    facts = stranger.describe()
    forms = candidates(facts["own_name"], facts["parameters"], request.like, home)
    formats = (trial.format,) if trial else request.selection.formats or FORMATS
    probed = probe(stranger, forms, formats, request.origin.name)
    examination = Examination(request, home, probed, stranger, elsewhere, facts["numbers"], started, tell)
    _check_sizes(probed, request.selection.shape or (trial.sizes if trial else None))
    if trial is None:
        return examination.all()
    check_names(trial, probed.bench.form.order, probed.with_gradient, probed.bench.form.optional)
    return examination.one(trial)


def _check_sizes(probed: Probed, shape: Sequence[int] | None) -> None:
    spec = probed.bench.form.spec
    if shape is not None and len(shape) != len(spec.shape_axes):
        text = "x".join(map(str, shape))
        raise ValueError(f"{spec.name}: shape={text} has {len(shape)} sizes; allowed: {'x'.join(spec.shape_axes)}")
    check_sizes(spec.name, shape or ())


@dataclass(slots=True)
class Examination:
    """One function under judgement."""

    request: Request
    home: Home
    probed: Probed
    stranger: Stranger
    elsewhere: Stranger | None
    numbers: Sequence[int]
    started: float
    tell: Callable[[str], None]

    @property
    def _again(self) -> Again:
        return Again(self.request.origin, self.probed.bench.form.spec.name, self.request.backend)

    def all(self) -> Report:
        """The search, then the order."""
        search = self._search()
        finding = None
        if set(self.request.promises) - {"order"}:
            try:
                search.run()
            except FoundError as found:
                self.tell("a difference was found; making it small")
                finding = self._failure(found)
        findings = [finding] if finding else self._passes(search)
        if not finding and "order" in self.request.promises:
            findings += judge_order(self.probed, self.home, self.request.order, self._finding, self.tell)
        beside = [] if finding else self._beside(search)
        return self._report(findings, search, stopped=finding is not None, beside=beside)

    def _beside(self, search: Search) -> list[str]:
        """What was seen and is no part of the verdict."""
        notes = [note_on_sums(self.probed, named_sizes(self.numbers))]
        if self.probed.two_axes and not search.ways.two_axes:
            notes.append(note_on_axes(self.probed.bench, self.probed.formats[0]))
        # The last call of all: a function may take its process along.
        notes.append(note_on_no_rows(self.probed))
        return [note for note in notes if note]

    def one(self, trial: Trial) -> Report:
        """One case again: its bits, and its problem against exact values."""
        shrinker = self._shrinker()
        found = shrinker.shows(trial)
        promise = self._promise(trial) if found else "accuracy"
        found = found or shrinker.far(trial)
        if found is None:
            words = f"{trial}: agrees with its rows alone, and is near enough to exact"
            findings = [self._finding(self._promise(trial), Verdict.HOLDS, 1, words)]
        else:
            findings = [
                self._finding(
                    promise, Verdict.DOES_NOT_HOLD, 1, self._words(replace(found, trial=trial)), self._again.of(trial)
                )
            ]
        return Report(findings=tuple(findings), environment=environment())

    def _search(self) -> Search:
        bench, request = self.probed.bench, self.request
        pool = bench.pool(Trial(sizes=(1,) * len(bench.form.spec.shape_axes), rows="normal"))
        ways = Ways(
            shapes={name: pool.arguments[name].dim() for name in bench.form.order},
            row_arguments=bench.form.spec.row_arguments,
            with_gradient=self.probed.with_gradient,
            own_backward=bench.own_backward,
            promises=frozenset(request.promises),
            vary_threads=self.stranger.threads_vary,
            threads=threads_near(self.numbers),
            two_axes=self.probed.two_axes and self.stranger.describe()["counts_axes"],
        )
        return Search(
            bench=bench,
            ways=ways,
            formats=self.probed.formats,
            seconds=request.seconds * busy(),
            seed=request.selection.seed or 0,
            numbers=self.probed.numbers,
            named=named_sizes(self.numbers),
            fixed=request.selection.shape,
            rows_kind=request.selection.recipe or "mixed",
            elsewhere=self.elsewhere,
            tell=self.tell,
        )

    def _shrinker(self) -> Shrinker:
        return Shrinker(
            bench=self.probed.bench,
            elsewhere=self.elsewhere,
            across="batch" in self.request.promises,
            numbers=self.probed.numbers,
            seconds=self.request.shrink_seconds,
        )

    def _failure(self, found: FoundError) -> Finding:
        shrinker, first = self._shrinker(), found.difference
        judged = shrinker.far if found.promise else shrinker.shows
        small = shrinker.smallest(first, judged)
        if small is None and not found.promise:
            small = shrinker.unsteady(first)
        calls = self.probed.bench.calls
        if small is None:
            beside = f"; against: {first.other}" if first.other else ""
            words = f"{self._words(first)}{beside}; not again by itself: what was called before, or chance, decides"
            promise = "repeat" if "repeat" in self.request.promises else self._promise(first.trial)
            again = self._again.of_the_search(self.request.selection.seed or 0, self.request.seconds)
            return self._finding(promise, Verdict.DOES_NOT_HOLD, calls, words, again)
        promise = found.promise or self._promise(small.trial)
        return self._finding(promise, Verdict.DOES_NOT_HOLD, calls, self._words(small), self._again.of(small.trial))

    def _promise(self, trial: Trial) -> str:
        named = [PROMISES[way] for way in ways_of(trial)]
        asked = [promise for promise in named if promise in self.request.promises]
        return next(iter(asked or named), "repeat")

    def _words(self, difference: Difference) -> str:
        trial = difference.trial
        ways = [TITLES[way] for way in ways_of(trial)] or ["the same call again"]
        against = (
            "" if difference.raised else ", against the plainest call of the same rows" if difference.other else ""
        )
        return f"{trial}: {difference.words} [{'; '.join(ways)}{against}]"

    def _passes(self, search: Search) -> list[Finding]:
        findings = []
        counts = {
            promise: sum(search.coverage.ways[way] for way, each in PROMISES.items() if each == promise)
            for promise in JUDGED
        }
        counts["accuracy"] = search.nearness
        for promise in self.request.promises:
            if promise == "order":
                continue
            if not counts[promise]:
                why = (
                    "threads cannot be varied in a fork of this process"
                    if promise == "tile" and not self.stranger.threads_vary
                    else "no call tried it"
                )
                findings.append(self._finding(promise, Verdict.COULD_NOT_BE_JUDGED, 0, why))
                continue
            detail = (
                f"worst error {search.share:.3f} of the bound" if promise == "accuracy" else "no two calls disagreed"
            )
            findings.append(self._finding(promise, Verdict.HOLDS, counts[promise], detail))
        return findings

    def _report(self, findings: Sequence[Finding], search: Search, *, stopped: bool, beside: Sequence[str]) -> Report:
        notes = [f"not asked: {self.request.origin.name}: {note}" for note in self.probed.notes]
        notes += beside
        if not self.stranger.threads_vary:
            notes.append(
                "it runs in a fork of this process, for no other can import it; the number of threads was not varied"
            )
        if stopped:
            notes.append("the search ended at the first difference; nothing is said about other promises")
        covered = search.coverage.lines_of_text(search.letters)
        return Report(
            findings=tuple(findings),
            environment=environment(),
            notes=(*covered, *notes),
            coverage=search.coverage.as_dict(),
        )

    def _finding(self, promise: str, verdict: Verdict, cases: int, detail: str, again: str = "") -> Finding:
        return Finding(
            subject=self.request.origin.name,
            promise=promise,
            backend=self.request.backend,
            verdict=verdict,
            cases=cases,
            detail=detail,
            reproduce=again,
            seconds=round(time.monotonic() - self.started, 3),
        )


def _unjudged(request: Request, reason: str, started: float) -> Report:
    finding = Finding(
        subject=request.origin.name,
        promise="all" if request.promises == JUDGED else ", ".join(request.promises),
        backend=request.backend,
        verdict=Verdict.COULD_NOT_BE_JUDGED,
        cases=0,
        detail=reason,
        seconds=round(time.monotonic() - started, 3),
    )
    return Report(findings=(finding,), environment=environment())
