"""One problem and one call at a time: made, counted, and compared with everything known of its rows."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from samebits.checker.adversary.bench import Answer, Bench, RaisedError
from samebits.checker.adversary.coverage import Coverage
from samebits.checker.adversary.ledger import Difference, Ledger
from samebits.checker.adversary.nearness import judge_nearness, judge_specials
from samebits.checker.adversary.situations import Ways, ways_of
from samebits.checker.adversary.trial import Trial

MOST_ELEMENTS = 1 << 18
FEW_ROWS = (1, 5, 70)
"""Tried on every problem beside all rows of its pool: few rows against many is where kernels part."""


class FoundError(Exception):
    """The search is over: two calls disagree, or a result is too far from exact."""

    def __init__(self, difference: Difference, promise: str = "") -> None:
        super().__init__(difference.words)
        self.difference, self.promise = difference, promise


@dataclass(slots=True, kw_only=True)
class Attempts:
    """Calls of one function, and what may be varied; the time they may take."""

    bench: Bench
    ways: Ways
    seconds: float
    seed: int
    numbers: Mapping[str, float]
    coverage: Coverage = field(default_factory=Coverage)
    ledger: Ledger = field(init=False)
    source: random.Random = field(init=False)
    started: float = field(init=False)
    share: float = 0.0
    most_elements: int = MOST_ELEMENTS
    """Numbers that a problem's shared arguments may have."""
    nearness: int = 0
    """Problems compared with exact values."""
    seen: set[str] = field(default_factory=set)
    """Operators that watched calls dispatched, as digests."""
    new: list[Trial] = field(default_factory=list)
    """Calls that did something new, to be looked at closely."""

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.bench.form.spec.row_arguments, across="batch" in self.ways.promises)
        self.source, self.started = random.Random(self.seed), time.monotonic()

    def left(self, share: float = 1.0) -> bool:
        """Whether time is left of a share of the whole."""
        return self.spent() < share

    def spent(self) -> float:
        """The share of the time that has gone by."""
        return (time.monotonic() - self.started) / self.seconds

    def open(self, problem: Trial, few_rows: Sequence[int] = FEW_ROWS) -> bool:
        """The plain call on all rows of a problem. False where the function takes no such sizes, whatever the rows."""
        whole = replace(problem, sizes=(self.pool_rows(problem), *problem.sizes[1:]))
        if not self.affordable(whole):
            return False
        try:
            self._compare(whole, self.bench.call(whole))
        except RaisedError as error:
            self._refused(whole, error)
            return False
        if "accuracy" in self.ways.promises:
            self._near(problem)
        if "batch" in self.ways.promises:
            for count in few_rows:
                pick = f"s{self.source.randrange(1, 1000)}"
                self.attempt(replace(problem, sizes=(count, *problem.sizes[1:]), pick=pick))
        return True

    def _refused(self, trial: Trial, error: RaisedError) -> None:
        """A limit on sizes is no fault; one that depends on the rows is."""
        for count in dict.fromkeys((trial.count, 1, 16, 64)):
            try:
                self.bench.call(replace(trial, sizes=(count, *trial.sizes[1:]), pick="=0"))
            except RaisedError:
                continue
            raise FoundError(
                Difference(trial=trial, words=f"{error}, and not for {count} ordinary rows", raised=True)
            ) from error
        if str(error).startswith("returned") and not self.coverage.refused:
            raise FoundError(Difference(trial=trial, words=str(error), raised=True)) from error
        self.coverage.refused.append(f"{'x'.join(map(str, trial.sizes))} {trial.format}: {error}")

    def _near(self, problem: Trial) -> None:
        try:
            near_enough = judge_nearness(self.bench, problem, self.numbers)
            difference = near_enough.difference or judge_specials(self.bench, problem)
        except RaisedError as error:
            trial = replace(problem, requires=self.ways.with_gradient)
            raise FoundError(Difference(trial=trial, words=str(error), raised=True)) from error
        self.share, self.nearness = max(self.share, near_enough.share), self.nearness + 1
        if difference is not None:
            raise FoundError(difference, "accuracy")

    def near_sums(self, problem: Trial, counts: Sequence[int], share: float) -> None:
        """A weight's gradient over so many rows beside its exact value: a row that is left out is left out however the
        call is made."""
        shared = set(self.ways.with_gradient) - set(self.bench.form.spec.row_arguments)
        if "accuracy" not in self.ways.promises or not shared or self.bench.problem_refused(problem):
            return
        for rows in counts:
            if self.left(share):
                self._near(replace(problem, sizes=(rows, *problem.sizes[1:]), pick="n1"))

    def attempt(self, trial: Trial, *, watch: bool = False) -> None:
        """One call, compared with all that is known of its rows."""
        if not self.affordable(trial) or trial.layouts in self.coverage.layouts_refused:
            return
        calls = [trial]
        if trial.pick[0] in "n=" and self.bench.gradients_of(trial):
            # What the sums over these very rows are compared with.
            calls.insert(0, replace(trial.plain(), requires=self.ways.with_gradient))
        for each in calls:
            try:
                answer = self.bench.call(each, watch=watch)
            except RaisedError as error:
                if self._refuses_layouts(each):
                    self.coverage.layouts_refused[each.layouts] = str(error)
                    return
                raise FoundError(Difference(trial=each, words=str(error), raised=True)) from error
            self._compare(each, answer)
        if watch:
            self._watched(trial, answer)

    def _refuses_layouts(self, trial: Trial) -> bool:
        """Whether strides or an alignment are refused for any number of rows, which is a limit: the same call is
        answered where its arguments lie one number after the other. (One row alone has no stride.)"""
        if not trial.layouts or not self._answers(replace(trial, layouts=())):
            return False
        plain = replace(trial.problem, layouts=trial.layouts, pick="=0")
        counts = (max(2, trial.count), 2, 16, 64)
        return not any(self._answers(replace(plain, sizes=(count, *trial.sizes[1:]))) for count in counts)

    def _answers(self, trial: Trial) -> bool:
        try:
            self.bench.call(trial)
        except RaisedError:
            return False
        return True

    def _compare(self, trial: Trial, answer: Answer) -> None:
        self.coverage.count(trial)
        difference = self.ledger.compare(trial, answer, self.bench.pool(trial).kinds)
        if difference is not None:
            raise FoundError(difference)

    def _watched(self, trial: Trial, answer: Answer) -> None:
        """Other operators than any call before, or lines never reached: a place to look at closely."""
        more = bool(answer.lines) and answer.lines[0] > (self.coverage.lines[0] if self.coverage.lines else 0)
        if more or answer.fingerprint not in self.seen:
            self.new.append(trial)
        self.seen.add(answer.fingerprint)
        self.coverage.lines = answer.lines

    def affordable(self, trial: Trial) -> bool:
        """A call may take a fortieth of the whole time, and its data no longer to make; the first of a kind, any."""
        calls = 2 if trial.history else 1
        if self.bench.elements(trial.sizes) > self.most_elements:
            return False
        return self.untried(trial) or self.bench.cost.expected(trial.sizes) * calls <= max(self.seconds / 40, 0.02)

    def untried(self, trial: Trial) -> bool:
        """Whether no call was like this one yet. It is made however slow: what no call tried is not judged."""
        return not self.coverage.calls or not all(self.coverage.ways[way] for way in ways_of(trial))

    def pool_rows(self, problem: Trial) -> int:
        return len(self.bench.pool(problem).kinds)
