"""Makes a difference small: fewer rows, smaller sizes, plain data, plain strides, until nothing more can go.

Each step is judged in a process in which the function was never called: what is left shows the difference by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from samebits.checker.adversary.bench import Bench, RaisedError
from samebits.checker.adversary.ledger import Difference, Ledger
from samebits.checker.adversary.nearness import judge_nearness, judge_specials
from samebits.checker.adversary.processes import Stranger
from samebits.checker.adversary.sizes import legal
from samebits.checker.adversary.trial import Trial, arrangement
from samebits.records.report import UnjudgedError

MOST_ROWS_ALONE = 32
REPEATS = (2, 8, 64, 512)


@dataclass(slots=True)
class Shrinker:
    """Judges single trials, each beside the plainest calls of its own rows."""

    bench: Bench
    elsewhere: Stranger | None
    across: bool
    numbers: dict[str, float] = field(default_factory=dict)
    seconds: float = 10.0

    def shows(self, trial: Trial) -> Difference | None:
        """What a trial shows in a fresh process: each of its rows alone first, then the trial itself."""
        worker = self.bench.stranger.worker()
        ledger = Ledger(self.bench.form.spec.row_arguments, across=self.across)
        kinds = self.bench.pool(trial).kinds
        try:
            for plain in self._plain(trial):
                difference = ledger.compare(plain, self.bench.call(plain, worker=worker), kinds)
                if difference is not None:
                    return difference
            if trial.fresh:
                worker.end()
                worker = (self.elsewhere or self.bench.stranger).worker()
            for _ in range(trial.repeat):
                difference = ledger.compare(trial, self.bench.call(trial, worker=worker), kinds)
                if difference is not None:
                    return difference
        except RaisedError as error:
            return Difference(trial=trial, words=str(error), raised=True)
        finally:
            worker.end()
        return None

    def _plain(self, trial: Trial) -> Iterator[Trial]:
        if self.across:
            rows = np.unique(arrangement(trial, self.bench.pool(trial).kinds))[:MOST_ROWS_ALONE]
            yield from (trial.alone(int(row)) for row in rows)
        if not self.across or trial.requires:
            yield trial.plain()

    def far(self, trial: Trial) -> Difference | None:
        """What the trial's problem shows against exact values."""
        problem = trial.problem
        if trial.pick.startswith("n"):
            problem = replace(problem, sizes=trial.sizes, pick=trial.pick)
        try:
            return judge_nearness(self.bench, problem, self.numbers).difference or judge_specials(self.bench, problem)
        except RaisedError:
            return None

    def smallest(self, found: Difference, judged: Callable[[Trial], Difference | None]) -> Difference | None:
        """The smallest trial that still shows something; None where not even the first does by itself."""
        deadline = time.monotonic() + self.seconds
        best = judged(found.trial)
        if best is None and found.other is not None:
            best = judged(found.other)
        if best is None:
            return None
        best = replace(best, trial=best.trial)
        current = found.trial if judged(found.trial) is not None else best.trial
        progress = True
        while progress and time.monotonic() < deadline:
            progress = False
            for candidate in _smaller(current, self.bench.form.spec.shape_axes):
                if time.monotonic() > deadline:
                    break
                try:
                    difference = judged(candidate)
                except (UnjudgedError, ValueError):
                    continue
                # Smaller sizes may break it in another way: bits that differ are not made an exception.
                if difference is not None and difference.raised == best.raised:
                    current, best, progress = candidate, difference, True
                    break
        return replace(best, trial=current)

    def unsteady(self, found: Difference) -> Difference | None:
        """A difference that shows now and then: with every row, the same call again and again, or after others."""
        rows = len(self.bench.pool(found.trial).kinds)
        every = replace(found.trial, sizes=(rows, *found.trial.sizes[1:]), pick="0", fold=0, history="")
        shown = self.smallest(replace(found, trial=every, other=None), self.shows)
        if shown is not None:
            return shown
        for repeat in REPEATS:
            trial = replace(found.trial, repeat=repeat, history="")
            difference = self.shows(trial)
            if difference is not None:
                return replace(difference, trial=trial)
        for history in ("rows", "shared", "almost", "larger", "fewer"):
            trial = replace(found.trial, history=history, reuse=True)
            difference = self.shows(trial)
            if difference is not None:
                return replace(difference, trial=trial)
        return None


def _smaller(trial: Trial, letters: str) -> Iterator[Trial]:
    """One step simpler, the boldest first."""
    plainer = {
        "fresh": False,
        "poison": False,
        "history": "",
        "between": False,
        "reuse": False,
        "fold": 0,
        "layouts": (),
        "threads": 0,
        "mode": "plain",
        "requires": (),
        "omit": (),
        "shared": "normal",
        "rows": "normal",
        "format": "float32",
        "seed": 0,
    }
    for name, value in plainer.items():
        if getattr(trial, name) != value:
            yield replace(trial, **{name: value})  # type: ignore[arg-type]
    if len(trial.layouts) > 1:
        yield from (replace(trial, layouts=(each,)) for each in trial.layouts)
    if any("+" in layout for _, layout in trial.layouts):
        yield replace(trial, layouts=tuple((name, layout.partition("+")[0]) for name, layout in trial.layouts))
    if len(trial.requires) > 1:
        yield from (replace(trial, requires=(each,)) for each in trial.requires)
    for place, size in enumerate(trial.sizes):
        for smaller in dict.fromkeys((1, 2, 3, size // 8, size // 2, (3 * size) // 4, size - 1)):
            if 1 <= smaller < size:
                sizes = legal(letters, (*trial.sizes[:place], smaller, *trial.sizes[place + 1 :]))
                if sizes != trial.sizes and sum(sizes) < sum(trial.sizes):
                    yield replace(trial, sizes=sizes)
    if trial.pick != "0":
        yield replace(trial, pick="0")
        if not trial.pick.startswith("="):
            yield replace(trial, pick="=0")
    if trial.repeat > 1:
        yield replace(trial, repeat=max(1, trial.repeat // 2))
