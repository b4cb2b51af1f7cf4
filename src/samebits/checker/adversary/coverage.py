"""What a search has tried, counted by the way in which calls differed, and what that says about faults it did not meet.

A fault that shows in a share p of the calls of a class is missed by n of them with probability (1 - p)^n."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from samebits.checker.adversary.situations import ways_of
from samebits.checker.adversary.trial import Trial

CONFIDENCE = 0.95
TITLES = {
    "batch": "rows, places and neighbours",
    "axes": "rows in two axes",
    "padding": "rows of padding",
    "chunk": "views of a larger batch",
    "threads": "number of threads",
    "layout": "strides, offsets, alignment",
    "mode": "no_grad, inference_mode",
    "gradients": "gradients and requires_grad",
    "history": "call history, reused tensors",
    "memory": "uninitialised memory",
    "fresh": "first calls of a process",
    "sizes": "sizes of the other axes",
}


@dataclass(slots=True)
class Coverage:
    """Counts."""

    calls: int = 0
    ways: Counter[str] = field(default_factory=Counter)
    rows: set[int] = field(default_factory=set)
    problems: set[tuple[int, ...]] = field(default_factory=set)
    formats: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)
    layouts_refused: dict[tuple[tuple[str, str], ...], str] = field(default_factory=dict)
    """Layouts that it takes for no rows, each with what it says."""
    lines: tuple[int, ...] = ()
    missed: tuple[int, ...] = ()

    def count(self, trial: Trial) -> None:
        self.calls += 1
        self.rows.add(trial.count)
        if trial.sizes[1:] not in self.problems:
            self.problems.add(trial.sizes[1:])
            self.ways["sizes"] += 1
        self.formats[trial.format] += 1
        for way in ways_of(trial):
            self.ways[way] += 1

    def met(self, way: str) -> float:
        """The smallest share of a class's calls that a fault must touch to have been met with 95 %."""
        return float(1 - (1 - CONFIDENCE) ** (1 / self.ways[way])) if self.ways[way] else 1.0

    def lines_of_text(self, letters: str) -> list[str]:
        """What was covered, for a reader."""
        if not self.calls:
            return []
        largest = [max(sizes) for sizes in zip(*self.problems, strict=True)]
        axes = ", ".join(f"{letter} up to {size}" for letter, size in zip(letters[1:], largest, strict=True))
        rows = f"{letters[0]} up to {max(self.rows)} ({len(self.rows)} different)"
        formats = ", ".join(f"{name} {count}" for name, count in self.formats.items())
        text = [f"{self.calls} calls; {rows}, {axes} ({len(self.problems)} different); {formats}"]
        for way, title in TITLES.items():
            if self.ways[way]:
                text.append(
                    f"{title}: {self.ways[way]} calls; a fault in {self.met(way):.2%} of such calls is met with 95 %"
                )
        if self.lines and self.lines[1]:
            missed = f"; never: line{'s' if len(self.missed) > 1 else ''} {_ranges(self.missed)}" if self.missed else ""
            text.append(f"{self.lines[0]} of {self.lines[1]} lines of its Python were reached{missed}")
        if self.refused:
            text.append(f"{len(self.refused)} sizes it does not take, whatever the rows, e.g. {self.refused[0]}")
        if self.layouts_refused:
            layouts, why = next(iter(self.layouts_refused.items()))
            words = ",".join(f"{name}:{layout}" for name, layout in layouts)
            text.append(f"{len(self.layouts_refused)} layouts it does not take, whatever the rows, e.g. {words}: {why}")
        return text

    def as_dict(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "rows": sorted(self.rows),
            "sizes": len(self.problems),
            "formats": dict(self.formats),
            "classes": {way: {"calls": count, "met_at_95": self.met(way)} for way, count in self.ways.items()},
            "lines": list(self.lines),
            "missed_lines": list(self.missed),
            "refused": self.refused,
            "layouts_refused": [dict(layouts) for layouts in self.layouts_refused],
        }


def _ranges(numbers: tuple[int, ...]) -> str:
    """3-5, 9."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in parts[:12])
