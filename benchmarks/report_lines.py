"""A measured ratio, ratios in order, and what is said of a record: words only, of no record in particular."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

# Where three decimals say 1.000, both sides took the same time.
SAME = 0.9995

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One measured ratio, above 1 where samebits is faster."""

    case: str
    ratio: float
    setting: str = ""
    """What tells it from others of its case, e.g. the number of threads."""
    missed: float | None = None
    """The target that it does not reach."""

    def words(self) -> str:
        setting = f" {self.setting}" if self.setting else ""
        missed = "" if self.missed is None else f" (wanted {self.missed:.2f}: **does not hold**)"
        return f"{figure(self.ratio)}{setting}{missed}"


def figure(ratio: float) -> str:
    """Two decimals; three where two would say that there is no difference."""
    two = f"{ratio:.2f}"
    return f"{ratio:.3f}" if two == "1.00" else two


@dataclass(frozen=True, slots=True)
class Listed:
    """A table: a row a case, the lowest first."""

    lines: tuple[Line, ...]
    label: str = ""
    """What tells these from others of the record."""

    def rows(self) -> str:
        cases: dict[str, list[Line]] = {}
        for line in self.lines:
            cases.setdefault(line.case, []).append(line)
        slowest_first = sorted(cases, key=lambda case: min(line.ratio for line in cases[case]))
        told = [f"| {case.rstrip(',')} | {', '.join(line.words() for line in cases[case])} |" for case in slowest_first]
        return "\n".join([f"| {self.label or 'case'} | ratio |", "| --- | --- |", *told])

    def median(self) -> float:
        return statistics.median(line.ratio for line in self.lines)

    def lowest(self) -> Line:
        return min(self.lines, key=lambda line: line.ratio)


def listed(lines: Iterable[Line], label: str = "") -> Listed:
    return Listed(tuple(lines), label)


Point = str | Listed


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What the section says of one record."""

    file: str
    title: str
    compared: str
    """What is divided by what."""
    rival: str = ""
    """What is beside samebits, in a few words."""
    write: Callable[[Record], list[Point]]
    """The points under the title."""


def missed(row: Record) -> float | None:
    """The target of a row that does not reach it."""
    target = row.get("target")
    return target if target is not None and row["ratio"] < target else None
