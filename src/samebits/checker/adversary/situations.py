"""The ways in which a call can be made differently and must give the same bits: a fixed core, and draws from all.

Each way belongs to a promise; only those that were asked for are tried. Knows arguments by name and no operator."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from samebits.checker.adversary.layouts import MOST_OFFSET, letters_for
from samebits.checker.adversary.pool import MIXED
from samebits.checker.adversary.trial import COTANGENT, HISTORIES, Trial

THREADS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 24, 32)
MOST_THREADS = 64
CORE_THREADS = (1, 2, 3, 4)
PADDING = ("zero", "nan", "infinite", "huge")
# Which promise a way of calling belongs to.
PROMISES = {
    "batch": "batch",
    "axes": "batch",
    "padding": "padding",
    "chunk": "chunk",
    "threads": "tile",
    "layout": "repeat",
    "mode": "repeat",
    "gradients": "repeat",
    "history": "repeat",
    "memory": "repeat",
    "fresh": "repeat",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Ways:
    """What can be varied for one function."""

    shapes: dict[str, int]
    """Argument to its number of axes."""
    row_arguments: tuple[str, ...]
    with_gradient: tuple[str, ...]
    """Arguments that may require one."""
    own_backward: bool
    """Torch's own sums of a gradient depend on its strides: only a backward pass of the function's own is asked."""
    promises: frozenset[str]
    vary_threads: bool = True
    threads: tuple[int, ...] = THREADS
    """Numbers of threads to try."""
    two_axes: bool = False
    """It takes rows in two axes, and its code asks how many there are."""

    def asked(self, way: str) -> bool:
        possible = {"threads": self.vary_threads, "axes": self.two_axes}.get(way, True)
        return PROMISES[way] in self.promises and possible

    def layouts(self, name: str) -> str:
        shape = (2,) * self.shapes[name]
        letters = letters_for(shape, rows=name in self.row_arguments)
        kept = [letter for letter in letters if self.asked("chunk" if letter == "v" else "layout")]
        return "".join(kept)


def threads_near(numbers: Sequence[int]) -> tuple[int, ...]:
    """The usual numbers of threads, and those at which a function's own code may change its mind."""
    named = (number + step for number in numbers for step in (0, 1) if number + step <= MOST_THREADS)
    return tuple(dict.fromkeys((*THREADS, *named)))


def core(base: Trial, ways: Ways) -> Iterator[Trial]:
    """One of each, on one problem: cheap, and where most functions stumble."""
    if ways.asked("batch"):
        yield from (replace(base, sizes=(count, *base.sizes[1:]), pick=pick) for count, pick in _CORE_ROWS)
    if ways.asked("axes"):
        yield from _core_axes(base, ways)
    if ways.asked("fresh"):
        yield from (base, base)
    for name in ways.shapes:
        for letter in ways.layouts(name):
            for offset in _CORE_OFFSETS.get(letter, (0, 3)):
                yield replace(base, layouts=((name, f"{letter}+{offset}"),))
    if ways.asked("layout"):
        yield replace(base, layouts=tuple((name, "t") for name in ways.shapes))
        yield replace(base, layouts=tuple((name, "s+1") for name in ways.shapes))
        yield replace(base, layouts=tuple((name, "j") for name in ways.shapes))
        yield replace(base, pick="=1", layouts=tuple((name, "e") for name in ways.row_arguments))
    if ways.asked("threads"):
        yield from (replace(base, threads=threads) for threads in ways.threads)
    if ways.asked("mode"):
        yield from (replace(base, mode=mode) for mode in ("no_grad", "inference"))
        yield replace(base, mode="no_grad", requires=ways.with_gradient)
    if ways.asked("gradients") and ways.with_gradient:
        yield from _core_gradients(base, ways)
    if ways.asked("history"):
        for history in HISTORIES[1:]:
            yield from (replace(base, history=history, reuse=reuse) for reuse in (True, False))
    if ways.asked("memory"):
        yield replace(base, poison=True)
    if ways.asked("padding"):
        for kind in PADDING:
            rows = base.count
            yield from (
                replace(base, sizes=(rows + before + after, *base.sizes[1:]), pick=f"pad:{kind}:{before}:{after}")
                for before, after in ((3, 0), (0, 5), (2, 2))
            )


def _core_axes(base: Trial, ways: Ways) -> Iterator[Trial]:
    for rows, fold in FOLDS:
        folded = replace(base, sizes=(rows, *base.sizes[1:]), pick="s1", fold=fold)
        yield folded
        if ways.own_backward:
            yield replace(folded, requires=ways.with_gradient, pick="n1")


def _core_gradients(base: Trial, ways: Ways) -> Iterator[Trial]:
    yield from (replace(base, requires=requires) for requires in _subsets(ways.with_gradient))
    # Sums over rows, of ordinary rows: the same for whatever is asked, and however the call is made.
    sums = [replace(base, requires=requires, pick="n1") for requires in _subsets(ways.with_gradient)]
    yield from sums
    if ways.asked("batch"):
        yield replace(sums[0], sizes=(base.count + 3, *base.sizes[1:]), pick="n1z3")
    if ways.asked("threads"):
        yield from (replace(sums[0], threads=threads) for threads in CORE_THREADS)
    yield replace(sums[0], layouts=tuple((name, "t") for name in ways.shapes))
    yield replace(sums[0], history="rows", reuse=True)
    if ways.asked("layout") and ways.own_backward:
        yield from (replace(sums[0], layouts=((COTANGENT, layout),)) for layout in _CORE_COTANGENTS)
        yield replace(base, requires=ways.with_gradient, pick="=1", layouts=((COTANGENT, "e"),))
        yield replace(sums[0], pick="=0", layouts=((COTANGENT, "e"),))
    if ways.asked("history"):
        yield from (replace(each, between=True) for each in (sums[0], replace(sums[0], pick="s1")))


# One row, one sequence, sequences of one token, several of several: few of many and many of few.
FOLDS = ((1, 1), (6, 6), (6, 1), (6, 3), (6, 2), (35, 7), (64, 16), (65, 65), (129, 3), (300, 100), (300, 3))
# Seeds, where the letter draws: both orders of two axes, with gaps behind either, behind both and behind none.
_CORE_OFFSETS = {"c": (0, 1, 5), "t": (0, 1, 5), "g": (0, 1, 2, 3, 4, 5)}
_CORE_COTANGENTS = ("c+1", "p", "s", "r", "t", "g+0", "g+5")
_CORE_ROWS = (
    *((1, f"={row}") for row in range(12)),
    (2, "0"),
    (3, "5"),
    (4, "s1"),
    (5, "=0"),
    (7, "s2"),
    (8, "9"),
    (9, "s3"),
    (16, "s4"),
    (17, "=4"),
    (31, "s5"),
    (33, "s6"),
    (64, "s7"),
    (65, "s8"),
    (100, "s9"),
    (129, "s10"),
    (257, "s11"),
    (300, "s12"),
    (513, "s13"),
)


def _subsets(names: Sequence[str]) -> list[tuple[str, ...]]:
    single: list[tuple[str, ...]] = [(name,) for name in names]
    return [tuple(names), *single] if len(names) > 1 else single


def drawn(source: random.Random, base: Trial, ways: Ways, rows: Callable[[], int]) -> Trial:
    """A call on the same data, other in one to four ways."""
    trial = base
    if ways.asked("batch"):
        trial = replace(trial, sizes=(rows(), *base.sizes[1:]), pick=_drawn_pick(source))
    possible = [way for way in _DRAWS if ways.asked(way)]
    for way in source.sample(possible, k=min(len(possible), source.choice((0, 1, 1, 2, 2, 3)))):
        trial = _DRAWS[way](source, trial, ways)
    # Sums that torch itself makes for a gradient depend on the axes they go over.
    return replace(trial, fold=0) if trial.requires and not ways.own_backward else trial


def _drawn_pick(source: random.Random) -> str:
    choice = source.random()
    if choice < 0.15:
        return str(source.randrange(len(MIXED)))
    if choice < 0.25:
        return f"={source.randrange(len(MIXED))}"
    return f"s{source.randrange(1, 10**6)}"


def _draw_layout(source: random.Random, trial: Trial, ways: Ways) -> Trial:
    if source.random() < 0.1:
        return replace(trial, layouts=tuple((name, "j") for name in ways.shapes))
    chosen = []
    for name in ways.shapes:
        if source.random() < 0.6:
            offset = source.choice((0, 0, 1, 2, 4, source.randint(0, MOST_OFFSET)))
            chosen.append((name, f"{source.choice(ways.layouts(name) or 'c')}+{offset}"))
    if ways.own_backward and source.random() < 0.3:
        chosen.append((COTANGENT, f"{source.choice('cpsrtg')}+{source.randint(0, MOST_OFFSET)}"))
    return replace(trial, layouts=tuple(chosen))


def _draw_axes(source: random.Random, trial: Trial, ways: Ways) -> Trial:
    second = source.choice((1, 2, 3, 4, 5, 7, 8, 16, 31, 64, trial.count))
    rows = second * max(1, trial.count // second)
    return replace(trial, sizes=(rows, *trial.sizes[1:]), fold=second)


def _draw_view(source: random.Random, trial: Trial, ways: Ways) -> Trial:
    offset = source.randint(1, 40)
    return replace(
        trial, layouts=tuple((name, f"v+{offset}") for name in ways.row_arguments if "v" in ways.layouts(name))
    )


def _draw_threads(source: random.Random, trial: Trial, ways: Ways) -> Trial:
    return replace(trial, threads=source.choice(ways.threads))


def _draw_mode(source: random.Random, trial: Trial, ways: Ways) -> Trial:
    requires = ways.with_gradient if source.random() < 0.3 else ()
    return replace(trial, mode=source.choice(("no_grad", "inference")), requires=requires)


def _draw_gradients(source: random.Random, trial: Trial, ways: Ways) -> Trial:
    if not ways.with_gradient:
        return trial
    pick = f"n{source.randrange(1, 1000)}" if source.random() < 0.5 and ways.asked("batch") else trial.pick
    return replace(trial, mode="plain", requires=source.choice(_subsets(ways.with_gradient)), pick=pick)


def _draw_history(source: random.Random, trial: Trial, ways: Ways) -> Trial:
    between = bool(ways.with_gradient) and source.random() < 0.3
    return replace(trial, history=source.choice(HISTORIES), reuse=source.random() < 0.6, between=between)


def _draw_memory(source: random.Random, trial: Trial, ways: Ways) -> Trial:
    return replace(trial, poison=True)


def _draw_padding(source: random.Random, trial: Trial, ways: Ways) -> Trial:
    if not ways.asked("batch"):
        return trial
    before, after = source.randint(0, 9), source.randint(0, 9)
    count = max(trial.count, before + after + 1)
    return replace(trial, sizes=(count, *trial.sizes[1:]), pick=f"pad:{source.choice(PADDING)}:{before}:{after}")


_DRAWS: dict[str, Callable[[random.Random, Trial, Ways], Trial]] = {
    "axes": _draw_axes,
    "layout": _draw_layout,
    "chunk": _draw_view,
    "threads": _draw_threads,
    "mode": _draw_mode,
    "gradients": _draw_gradients,
    "history": _draw_history,
    "memory": _draw_memory,
    "padding": _draw_padding,
}


def ways_of(trial: Trial) -> list[str]:
    """In what a trial differs from the plainest call; what a finding is filed under, the first first."""
    found = []
    if trial.pick.startswith("pad:"):
        found.append("padding")
    elif trial.count > 1:
        found.append("batch")
    if trial.fold:
        found.append("axes")
    if any(layout.startswith("v") for _, layout in trial.layouts):
        found.append("chunk")
    if trial.threads:
        found.append("threads")
    if any(layout not in ("c", "c+0") and not layout.startswith("v") for _, layout in trial.layouts):
        found.append("layout")
    if trial.mode != "plain":
        found.append("mode")
    if trial.requires:
        found.append("gradients")
    if trial.history or trial.between or trial.reuse or trial.repeat > 1:
        found.append("history")
    if trial.poison:
        found.append("memory")
    if trial.fresh:
        found.append("fresh")
    return found
