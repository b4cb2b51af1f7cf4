"""One call of a function under judgement, by name: sizes, data, rows picked, layouts, threads, mode, what came before.

A trial is one line of text that can be read back; the text fixes every input bit. Knows no function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations

import numpy as np

from samebits.checker.adversary.layouts import parsed
from samebits.contracts.language import FORMATS

MODES = ("plain", "no_grad", "inference")
# What is called just before, with equal sizes: the same call, one with other rows, one with another weight, one whose
# last number alone differs, one with more rows, one of a single row, one with another theta, epsilon or the like.
HISTORIES = ("", "same", "rows", "shared", "almost", "larger", "fewer", "numbers")
CONTIGUOUS = "c"
COTANGENT = "cotangent"
"""What flows into the output, as layouts name it."""
MOST_NUMBERS, MOST_REPEATS, MOST_THREADS = 1 << 28, 4096, 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """What is not said is as plain as can be: contiguous, torch's own number of threads, no gradients, no history."""

    sizes: tuple[int, ...]
    """Rows first."""
    format: str = "float32"
    seed: int = 0
    shared: str = "normal"
    """Data of the arguments that every row shares."""
    rows: str = "mixed"
    """Kinds of rows, joined by commas, over and over; mixed is one of each."""
    pick: str = "0"
    """Which rows: "0" in order, "s5" at random by seed 5, "n5" ordinary ones at random, "n5z7" with seven rows of zeros
    behind, into whose output nothing flows, "=3" row 3 everywhere, "2,0,7" these, "pad:nan:3:4" rows in order with
    three rows of NaN before and four behind."""
    fold: int = 0
    """Rows in two axes, batch and tokens: the second has the greatest common divisor of this and their number."""
    layouts: tuple[tuple[str, str], ...] = ()
    threads: int = 0
    mode: str = "plain"
    requires: tuple[str, ...] = ()
    """Arguments that require a gradient."""
    omit: tuple[str, ...] = ()
    """Optional arguments that are left out."""
    reuse: bool = False
    """Tensors of earlier calls, overwritten in place."""
    history: str = ""
    between: bool = False
    """This call's backward pass is made a second time, after other rows went through the function."""
    poison: bool = False
    """Memory that torch leaves uninitialised is filled with NaN."""
    fresh: bool = False
    """The first call of a process of its own."""
    repeat: int = 1
    """So many times; all must agree."""

    @property
    def count(self) -> int:
        """Rows of the call."""
        return self.sizes[0]

    @property
    def axes(self) -> tuple[int, ...]:
        """How many rows each axis of rows has."""
        second = math.gcd(self.count, self.fold)
        return (self.count // second, second) if self.fold else (self.count,)

    @property
    def silent(self) -> int:
        """Rows at the end into whose output nothing flows."""
        return int(self.pick.partition("z")[2] or 0) if self.pick[0] == "n" else 0

    @property
    def problem(self) -> Trial:
        """The trial that all trials with equal data share."""
        return Trial(
            sizes=(1, *self.sizes[1:]),
            format=self.format,
            seed=self.seed,
            shared=self.shared,
            rows=self.rows,
            omit=self.omit,
        )

    def alone(self, row: int) -> Trial:
        """One row of this trial's data, as plain as can be; with gradients where this trial has them."""
        return replace(
            self.problem,
            pick=f"={row}",
            requires=self.requires if self.mode == "plain" else (),
            sizes=(1, *self.sizes[1:]),
        )

    def plain(self) -> Trial:
        """The same rows, as plain as can be."""
        return replace(self.alone(0), sizes=self.sizes, pick=self.pick)

    def __str__(self) -> str:
        words = ["x".join(map(str, self.sizes))]
        for each in fields(self)[1:]:
            value = getattr(self, each.name)
            if value == each.default:
                continue
            if each.name == "layouts":
                value = ",".join(f"{name}:{layout}" for name, layout in value)
            elif isinstance(value, tuple):
                value = ",".join(value)
            words.append(each.name if value is True else f"{each.name}={value}")
        return " ".join(words)


def parse_trial(text: str) -> Trial:
    """The trial that a line describes; a mistake in it is a ValueError that names it."""
    words = text.split()
    if not words:
        raise ValueError("case='' is empty; a case starts with its sizes, like 17x100x33")
    sizes = words[0].split("x")
    if not all(size.isascii() and size.isdigit() and 0 < int(size) < 2**31 for size in sizes):
        raise ValueError(f"case: sizes={words[0]!r} cannot be read; allowed: sizes joined by x, like 17x100x33")
    check_sizes("case", tuple(int(size) for size in sizes))
    known = {each.name: each for each in fields(Trial)}
    given: dict[str, object] = {"sizes": tuple(int(size) for size in sizes)}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if name not in known or name == "sizes":
            raise ValueError(f"case: {word!r} is unknown; allowed: {', '.join(list(known)[1:])}")
        given[name] = _value(name, known[name].default, value, bool(equals))
    trial = Trial(**given)  # type: ignore[arg-type]
    _check(trial)
    return trial


def check_sizes(what: str, sizes: Sequence[int]) -> None:
    """More numbers than any search tries are refused before one is made: they would take the machine's memory."""
    # Of a product no argument has all three axes.
    count = sum(map(math.prod, combinations(sizes, 2))) if len(sizes) == 3 else math.prod(sizes)
    if count > MOST_NUMBERS:
        text = "x".join(map(str, sizes))
        raise ValueError(f"{what}: sizes={text} make {count} numbers; allowed: at most {MOST_NUMBERS}")


def check_names(trial: Trial, arguments: Sequence[str], gradients: Sequence[str], optional: Sequence[str]) -> None:
    """That what a case says of arguments is about arguments of the function; else it would say nothing of the case."""
    for word, given, allowed in (
        ("layouts", [name for name, _ in trial.layouts], (*arguments, COTANGENT)),
        ("requires", trial.requires, gradients),
        ("omit", trial.omit, optional),
    ):
        for name in given:
            if name not in allowed:
                raise ValueError(f"case: {word}={name!r} is unknown; allowed: {', '.join(allowed) or 'none'}")


def _value(name: str, default: object, text: str, given: bool) -> object:
    if isinstance(default, bool):
        if given:
            raise ValueError(f"case: {name}={text!r}: {name} takes no value")
        return True
    if isinstance(default, int):
        if not (text.isascii() and text.isdigit() and int(text) < 2**31):
            raise ValueError(f"case: {name}={text!r} is not a number")
        return int(text)
    if name == "layouts":
        pairs = [pair.partition(":")[::2] for pair in text.split(",")]
        for _, layout in pairs:
            parsed(layout)
        return tuple(pairs)
    if isinstance(default, tuple):
        return tuple(text.split(","))
    return text


def _check(trial: Trial) -> None:
    for name, allowed in (("format", FORMATS), ("mode", MODES), ("history", HISTORIES)):
        if getattr(trial, name) not in allowed:
            raise ValueError(f"case: {name}={getattr(trial, name)!r} is unknown; allowed: {', '.join(allowed)}")
    for name, least, most in (("repeat", 1, MOST_REPEATS), ("threads", 0, MOST_THREADS)):
        if not least <= getattr(trial, name) <= most:
            raise ValueError(f"case: {name}={getattr(trial, name)}; allowed: {least} to {most}")
    arrangement(trial, ["normal"])


def arrangement(trial: Trial, kinds: Sequence[str]) -> np.ndarray:
    """Which row of the pool stands at each place."""
    pick, count, rows = trial.pick, trial.count, len(kinds)
    try:
        if pick[0] in "sn":
            # Sums over rows say nothing where a row is NaN: "n" picks ordinary rows only.
            kept = [place for place, kind in enumerate(kinds) if pick[0] == "s" or kind == "normal"] or [0]
            silent = min(trial.silent, count)
            words = np.random.PCG64(int(pick[1:].partition("z")[0])).random_raw(count - silent)
            drawn = np.array(kept)[(words % np.uint64(len(kept))).astype(np.int64)]
            return np.append(drawn, [kinds.index("zero") if "zero" in kinds else 0] * silent).astype(np.int64)
        if pick.startswith("="):
            return np.full(count, int(pick[1:]) % rows)
        if pick.startswith("pad:"):
            _, kind, before, after = pick.split(":")
            place = kinds.index(kind) if kind in kinds else 0
            inner = max(count - int(before) - int(after), 0)
            whole = [place] * int(before) + [i % rows for i in range(inner)] + [place] * int(after)
            return np.array(whole[:count])
        if "," in pick:
            chosen = [int(part) % rows for part in pick.split(",")]
            return np.array([chosen[i % len(chosen)] for i in range(count)])
        return (np.arange(count) + int(pick)) % rows
    except (ValueError, IndexError) as error:
        raise ValueError(
            f"case: pick={pick!r} cannot be read; allowed: 0, s5, n5, n5z7, =3, 2,0,7 or pad:nan:3:4"
        ) from error
