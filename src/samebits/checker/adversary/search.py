"""Looks for two calls that should agree and do not: a fixed core, sweeps, sizes that the code names, then draws.

Runs by the clock. Where a call does something new (other operators, other lines), the search stays a while. Ends at the
first difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from samebits.checker.adversary.attempts import Attempts, FoundError
from samebits.checker.adversary.bench import RaisedError
from samebits.checker.adversary.large_weights import beside_large_weights
from samebits.checker.adversary.ledger import Difference
from samebits.checker.adversary.pool import SHARED
from samebits.checker.adversary.processes import Stranger
from samebits.checker.adversary.situations import core, drawn
from samebits.checker.adversary.sizes import (
    EDGES,
    LARGE,
    LONG_ROWS,
    MANY_ROWS,
    MOST_ROWS,
    REMAINDERS,
    SUM_ROWS,
    axes_of,
    drawn_rows,
    drawn_tail,
    has_weight,
    legal,
    swept,
)
from samebits.checker.adversary.trial import Trial

# Shares of the time that the parts may take at most; what is left goes to draws.
CORE_SHARE, SWEEP_SHARE, NAMED_SHARE, LARGE_SHARE = 0.35, 0.3, 0.2, 0.1
CALLS_A_PROBLEM = 9
WATCHED = 6
"""One call in so many is watched."""
LONG, SHORT = 256, 3
FEW_FAR_APART = (1, 1, 1, 2, 3, 4, 7, 8, 16, 33, 70)


@dataclass(slots=True, kw_only=True)
class Search(Attempts):
    """One function from its first call to the end of the time."""

    formats: Sequence[str]
    named: Sequence[int] = ()
    """Sizes to try because the function's code names numbers like them."""
    fixed: tuple[int, ...] | None = None
    """The only sizes to try, rows at most."""
    rows_kind: str = "mixed"
    elsewhere: Stranger | None = None
    """The same function in a process with another hash seed."""
    tell: Callable[[str], None] = lambda _: None

    @property
    def letters(self) -> str:
        return self.bench.form.spec.shape_axes

    def run(self) -> None:
        """Everything in turn; a FoundError ends it."""
        self.tell("the core: one call of every kind")
        self._core()
        self.tell("the first calls of other processes")
        self._fresh()
        if self.fixed is None:
            self.tell("every number of rows, and every small size")
            self._sweeps()
            beside_large_weights(self, self.letters, self._base, self.formats[0], LARGE_SHARE)
            self.tell("sizes that the function's code names")
            self._named()
        number = 0
        while self.left():
            if not number % 20:
                self.tell(f"draws: {self.bench.calls} calls so far")
            if self.new:
                self._closely(self.new.pop())
            self._draw(number)
            number += 1
        self._finish()

    def _finish(self) -> None:
        answer, _ = self.bench.worker.ask({"do": "missed"}, {}, 10.0)
        self.coverage.missed = tuple(answer["missed"])

    def _base(self, tail: tuple[int, ...], **changed: object) -> Trial:
        """A problem's plain call, on as many rows as its pool has, or as were asked for."""
        sizes = legal(self.letters, (1, *tail))
        trial = Trial(sizes=sizes, rows=self.rows_kind, **changed)  # type: ignore[arg-type]
        count = self.pool_rows(trial)
        if self.fixed is not None:
            count = self.fixed[0]
        return replace(trial, sizes=(count, *sizes[1:]))

    def _core(self) -> None:
        tail = self.fixed[1:] if self.fixed else axes_of(self.letters).base
        for number, format in enumerate(self.formats):
            base = self._base(tail, format=format, seed=self.seed, omit=())
            if not self.open(base):
                base = self._base(tuple(_up(size) for size in tail), format=format, seed=self.seed)
                if not self.open(base):
                    continue
            for place, trial in enumerate(core(base, self.ways)):
                if not self.left(CORE_SHARE * (number + 1) / len(self.formats) + 0.1) and not self.untried(trial):
                    continue
                self.attempt(trial, watch=not place % WATCHED)
            for shared in self._kinds_of_shared()[1:]:
                other = replace(base, shared=shared, seed=self.seed + 1)
                if self.left(CORE_SHARE) and self.open(other):
                    self._several(other, 4)
        self._far_apart(tail)
        base = self._base(tail, format=self.formats[0], seed=self.seed)
        self.near_sums(base, SUM_ROWS if self.fixed is None else self.fixed[:1], CORE_SHARE + 0.1)
        for name in self.bench.form.optional:
            without = replace(self._base(tail, format=self.formats[0], seed=self.seed), omit=(name,))
            if self.open(without):
                self._several(without, 12)

    def _far_apart(self, tail: tuple[int, ...]) -> None:
        """Sums of numbers too far apart for a float64 accumulator: two orders of a wider one part there alone."""
        format = next((each for each in self.formats if each != "float16"), "")
        if format and self._may_be_far_apart("ones"):
            base = replace(self._base(tail, format=format, seed=self.seed, shared="ones"), rows="far_apart")
            if self.open(base, few_rows=FEW_FAR_APART):
                self._several(base, CALLS_A_PROBLEM)

    def _may_be_far_apart(self, shared: str) -> bool:
        """Whether such rows show an order: of sums of products, each with a one."""
        return shared == "ones" and self.rows_kind == "mixed" and self.bench.form.spec.exact_specials

    def _several(self, base: Trial, count: int) -> None:
        for _ in range(count):
            self.attempt(drawn(self.source, base, self.ways, lambda: self._rows(base)))

    def _rows(self, base: Trial) -> int:
        most = self.fixed[0] if self.fixed else MOST_ROWS
        return drawn_rows(self.source, self.named, most)

    def _fresh(self) -> None:
        """The first calls of a process give what later ones give: in a fork, and under another hash seed."""
        if not self.ways.asked("fresh"):
            return
        tail = self.fixed[1:] if self.fixed else axes_of(self.letters).base
        base = self._base(tail, format=self.formats[0], seed=self.seed)
        if self.bench.problem_refused(base):
            return
        first = replace(base, fresh=True)
        trials = [first, *(replace(first, history=history) for history in ("fewer", "shared", "numbers"))]
        if "batch" in self.ways.promises:
            trials.append(replace(first, sizes=(1, *base.sizes[1:])))
        for stranger in filter(None, (self.bench.stranger, self.elsewhere)):
            for trial in trials:
                worker = stranger.worker()
                try:
                    for each in (trial, replace(trial, requires=self.ways.with_gradient)):
                        self._compare(each, self.bench.call(each, worker=worker))
                except RaisedError as error:
                    raise FoundError(Difference(trial=trial, words=str(error), raised=True)) from error
                finally:
                    worker.end()

    def _sweeps(self) -> None:
        """Every number of rows on one problem; then every small size of each other axis, few rows against many."""
        tail = axes_of(self.letters).base
        base = self._base(tail, format=self.formats[0], seed=self.seed + 2)
        start = self.spent()
        if "batch" in self.ways.promises and self.open(base):
            for count in (*swept(340), *LONG_ROWS):
                if not self.left(start + SWEEP_SHARE / 2):
                    break
                trial = replace(base, sizes=(count, *base.sizes[1:]), pick=f"s{count}")
                self.attempt(trial, watch=not count % WATCHED)
            self._many_rows(MANY_ROWS, until=start + SWEEP_SHARE / 2)
        share = SWEEP_SHARE / 2 / len(tail)
        for place, most in enumerate(axes_of(self.letters).most):
            sizes = [*swept(min(130, most)), *(large for large in LARGE if large <= most)]
            begun = self.spent()
            # Where a size alone decides, one call tells: edges first, for a slow function is not asked about all.
            for size in dict.fromkeys((*(size for size in (*EDGES, *REMAINDERS) if size <= most), *sizes)):
                if self.spent() - begun > share / 2:
                    break
                whole = self._problem(self._with(place, size), shared="normal")
                self.open(whole if self.affordable(whole) else self._thin(whole, place), few_rows=())
            for size in sizes:
                if self.spent() - begun > share:
                    break
                self._around(self._with(place, size), calls=2)

    def _many_rows(self, counts: Sequence[int], until: float) -> None:
        """More rows than any other call has, of few numbers each."""
        tail = tuple(min(size, SHORT) for size in axes_of(self.letters).base)
        base = self._base(tail, format=self.formats[0], seed=self.seed + 3)
        if not self.open(base):
            return
        for count in counts:
            if self.left(until):
                self.attempt(replace(base, sizes=(count, *base.sizes[1:]), pick=f"s{count}"), watch=True)

    def _closely(self, trial: Trial) -> None:
        """Calls around one that did something new: fewer and more rows, and every kind of call on its data."""
        base = replace(
            trial.plain(), requires=(), history="", sizes=(self.pool_rows(trial), *trial.sizes[1:]), pick="0"
        )
        if not self.open(base):
            return
        if "batch" in self.ways.promises:
            for count in {max(1, trial.count + step) for step in (-2, -1, 0, 1, 2)} | {max(1, trial.count // 2)}:
                self.attempt(replace(trial, sizes=(count, *trial.sizes[1:])))
        for _ in range(CALLS_A_PROBLEM):
            self.attempt(drawn(self.source, base, self.ways, lambda: self._rows(base)))

    def _around(self, tail: tuple[int, ...], calls: int, rows: Sequence[int] = ()) -> None:
        """A problem of these sizes, a few calls on it."""
        base = self._problem(tail, shared=self._shared())
        if not self.affordable(base) or not self.open(base):
            return
        for count in rows:
            self.attempt(replace(base, sizes=(count, *base.sizes[1:]), pick=f"s{count}"), watch=True)
        self._several(base, calls)

    def _problem(self, tail: tuple[int, ...], shared: str) -> Trial:
        """New data of these sizes, mostly in the first format."""
        format = self.source.choice(self.formats) if self.source.random() < 0.3 else self.formats[0]
        return self._base(tail, format=format, seed=self.source.randrange(1000), shared=shared)

    def _thin(self, problem: Trial, place: int) -> Trial:
        """Its size of one axis beside short ones, and few rows: for a slow function."""
        tail = [min(size, SHORT) for size in problem.sizes[1:]]
        tail[place] = problem.sizes[1 + place]
        return replace(problem, sizes=legal(self.letters, (1, *tail)), rows="normal")

    def _shared(self) -> str:
        return self.source.choice(("normal", "normal", "normal", *self._kinds_of_shared()))

    def _kinds_of_shared(self) -> tuple[str, ...]:
        """A weight of ones makes the gradients of a softmax cancel to nothing but the rounding of any accumulator."""
        return SHARED if self.bench.form.spec.exact_specials else tuple(each for each in SHARED if each != "ones")

    def _with(self, place: int, size: int) -> tuple[int, ...]:
        """The usual sizes with one changed; beside a large one the others are small."""
        tail = list(axes_of(self.letters).base)
        if size > LONG and has_weight(self.letters):
            tail = [min(each, SHORT) for each in tail]
        tail[place] = size
        return tuple(tail)

    def _named(self) -> None:
        """Numbers in the code, as numbers of rows and as sizes of every axis; those themselves first."""
        start = self.spent()
        tail = axes_of(self.letters).base
        plans: list[tuple[int, int]] = []
        if "batch" in self.ways.promises:
            self._many_rows([size for size in self.named if size > MOST_ROWS], until=start + NAMED_SHARE / 2)
        for size in self.named:
            if size <= MOST_ROWS and "batch" in self.ways.promises:
                plans.append((-1, size))
            plans += [(place, size) for place, most in enumerate(axes_of(self.letters).most) if size <= most]
        for place, size in plans:
            if not self.left(start + NAMED_SHARE):
                break
            if place < 0:
                self._around(tail, 0, [size])
            else:
                self._around(self._with(place, size), 3)

    def _draw(self, number: int) -> None:
        tail = self.fixed[1:] if self.fixed else drawn_tail(self.source, self.letters, self.named)
        format = self.formats[0] if self.source.random() < 0.55 else self.source.choice(self.formats)
        optional = self.bench.form.optional
        omit = optional if optional and self.source.random() < 0.4 else ()
        base = self._base(tail, format=format, seed=self.source.randrange(10**6), shared=self._shared(), omit=omit)
        while not self.affordable(base) and max(base.sizes[1:]) > 1:
            base = self._base(
                tuple(max(1, size // 2) for size in base.sizes[1:]),
                format=format,
                seed=base.seed,
                shared=base.shared,
                omit=omit,
            )
        if self._may_be_far_apart(base.shared) and format != "float16" and number % 2:
            base = replace(base, rows="far_apart")
        if not self.open(base):
            return
        if "batch" not in self.ways.promises:
            base = replace(base, sizes=(self._rows(base), *base.sizes[1:]), pick=f"s{self.source.randrange(1, 10**6)}")
            self.attempt(base)
        for place in range(CALLS_A_PROBLEM):
            if not self.left():
                return
            trial = drawn(self.source, base, self.ways, lambda: self._rows(base))
            while not self.affordable(trial) and trial.count > 1:
                trial = replace(trial, sizes=(trial.count // 2, *trial.sizes[1:]))
            self.attempt(trial, watch=not (number + place) % WATCHED)


def _up(size: int) -> int:
    """The next multiple of 64: what picky functions take."""
    return -(-size // 64) * 64
