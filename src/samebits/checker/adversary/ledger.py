"""Remembers what every row gave, and says where a call differs: bits are compared here, on raw bytes, by numpy.

One row has one answer, whatever stood beside it and however the call was made. Sums over rows have one a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from samebits.checker.adversary.bench import Answer
from samebits.checker.adversary.calling import OUTPUT
from samebits.checker.adversary.frames import Array
from samebits.checker.adversary.trial import COTANGENT, Trial
from samebits.numerics.bits import FORMATS, compare

KEPT = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One broken agreement."""

    trial: Trial
    words: str
    other: Trial | None = None
    """The call it disagrees with."""
    row: int = -1
    """The row of the pool, where one row shows it."""
    raised: bool = False


@dataclass(slots=True)
class _Rows:
    array: Array
    known: np.ndarray
    first: list[Trial | None]


@dataclass(slots=True)
class Ledger:
    """Answers so far. With `across` a row must be the same in every batch; without, only in equal batches."""

    row_names: tuple[str, ...]
    across: bool = True
    rows: dict[tuple[Trial, str], _Rows] = field(default_factory=dict)
    sums: dict[tuple[Trial, str, int, str], tuple[Array, Trial]] = field(default_factory=dict)

    def compare(self, trial: Trial, answer: Answer, kinds: Sequence[str]) -> Difference | None:
        """The first disagreement with what is known; what is new is remembered."""
        if answer.changed:
            changed = [
                "the gradient of its output" if name == COTANGENT else f"its argument {name}" for name in answer.changed
            ]
            return Difference(trial=trial, words=f"changed {', '.join(changed)}")
        if answer.shares:
            return Difference(trial=trial, words=f"returned the memory of its argument {', '.join(answer.shares)}")
        if answer.overwritten:
            name, since = answer.overwritten
            handed = "an output" if name == OUTPUT else f"a {label(name)}"
            return Difference(trial=trial, words=f"{handed} handed out earlier was overwritten {since}")
        for name, found in answer.results.items():
            by_row = name == OUTPUT or name in self.row_names
            if by_row and self.across:
                # Into rows behind whose output nothing flows, gradients are not those of any other call.
                told = len(answer.index) - (trial.silent if name != OUTPUT else 0)
                rows = Array(found.dtype, found.bits[:told])
                difference = self._row_by_row(trial, name, rows, answer.index[:told], kinds)
            else:
                difference = self._whole(trial, name, found)
            if difference is not None:
                return difference
        return None

    def _row_by_row(
        self, trial: Trial, name: str, found: Array, index: np.ndarray, kinds: Sequence[str]
    ) -> Difference | None:
        key = (trial.problem, name)
        known = self.rows.get(key)
        if known is None:
            if len(self.rows) >= KEPT:
                del self.rows[next(iter(self.rows))]
            empty = Array(found.dtype, np.zeros((len(kinds), *found.bits.shape[1:]), found.bits.dtype))
            known = self.rows[key] = _Rows(empty, np.zeros(len(kinds), bool), [None] * len(kinds))
        if (found.dtype, found.bits.shape[1:]) != (known.array.dtype, known.array.bits.shape[1:]):
            sides = [f"rows of {list(each.bits.shape[1:])} {each.dtype}" for each in (known.array, found)]
            return Difference(
                trial=trial,
                words=f"{label(name)}: {sides[0]} != {sides[1]}",
                other=known.first[int(np.argmax(known.known))],
            )
        # Rows seen for the first time are written down first: copies within one call must agree too.
        for new in np.flatnonzero(~known.known[index]):
            row = int(index[new])
            if not known.known[row]:
                known.array.bits[row], known.known[row], known.first[row] = found.bits[new], True, trial
        expected = known.array.bits[index]
        if np.array_equal(expected, found.bits):
            return None
        differs = _differs(expected, found)
        if differs is None:
            return None
        words, at = differs
        place = at[0]
        row = int(index[place])
        where = f"{label(name)}: row {place} of {trial.count}, a row of kind {kinds[row]}: {words}"
        return Difference(trial=trial, words=where, other=known.first[row], row=row)

    def _whole(self, trial: Trial, name: str, found: Array) -> Difference | None:
        """Equal batches give equal sums over rows."""
        key = (trial.problem, name, trial.count, trial.pick)
        if key not in self.sums:
            while len(self.sums) >= KEPT:
                del self.sums[next(iter(self.sums))]
            self.sums[key] = (found, trial)
            return None
        expected, other = self.sums[key]
        if (found.dtype, found.bits.shape) != (expected.dtype, expected.bits.shape):
            sides = [f"{list(each.bits.shape)} {each.dtype}" for each in (expected, found)]
            return Difference(trial=trial, words=f"{label(name)}: {sides[0]} != {sides[1]}", other=other)
        if np.array_equal(expected.bits, found.bits):
            return None
        differs = _differs(expected.bits, found)
        return None if differs is None else Difference(trial=trial, words=f"{label(name)}: {differs[0]}", other=other)


def _differs(expected: np.ndarray, found: Array) -> tuple[str, tuple[int, ...]] | None:
    """Both sides of the first difference and where it is; NaN meets NaN."""
    if found.dtype in FORMATS:
        difference = compare(expected, found.bits, found.dtype)
        return None if difference is None else (str(difference), difference.index)
    places = np.argwhere(expected != found.bits)
    at = tuple(int(i) for i in places[0])
    return f"{len(places)} of {expected.size} differ; first {list(at)}: {expected[at]} != {found.bits[at]}", at


def label(name: str) -> str:
    return name if name == OUTPUT else f"gradient of {name}"
