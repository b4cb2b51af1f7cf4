"""A recording in tables: kernels, blocks and steps by the time that they took.

Knows spans, and no operator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from samebits.trace.spans import Event, Span


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """All spans of one name."""

    name: str
    granularity: str
    count: int
    milliseconds: float
    own_milliseconds: float
    """Without the spans inside."""
    share: float
    """Of all own time."""
    gigabytes_per_second: float | None
    """Where the spans say how many bytes they touch."""
    gigaflops_per_second: float | None
    """Where they say how many floating-point operations they take."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Of one recording."""

    rows: tuple[Row, ...]
    transfers: dict[str, tuple[int, int]]
    """Kind to (how many, bytes)."""

    def of(self, granularity: str) -> list[Row]:
        """Longest first."""
        found = [row for row in self.rows if row.granularity == granularity]
        return sorted(found, key=lambda row: -row.own_milliseconds)

    def document(self) -> dict[str, Any]:
        return {"rows": [asdict(row) for row in self.rows], "transfers": self.transfers}


def summary(spans: Sequence[Span], events: Sequence[Event] = ()) -> Summary:
    """Groups spans by name and granularity."""
    inside: dict[int, int] = defaultdict(int)
    around = {span.number: span for span in spans}
    for span in spans:
        inside[span.parent] += _within(span, around.get(span.parent))
    # On the host a span of the GPU takes as long as its launch.
    own = {span.number: max(0, span.nanoseconds - inside[span.number]) for span in spans}
    whole = sum(own.values()) or 1
    groups: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in spans:
        groups[span.granularity, span.name].append(span)
    rows = []
    for (granularity, name), group in groups.items():
        nanoseconds = sum(each.nanoseconds for each in group)
        touched, flops = (sum(_counted(each.facts.get(name)) for each in group) for name in ("bytes", "flops"))
        mine = sum(own[each.number] for each in group)
        rows.append(
            Row(
                name=name,
                granularity=granularity,
                count=len(group),
                milliseconds=nanoseconds / 1e6,
                own_milliseconds=mine / 1e6,
                share=mine / whole,
                gigabytes_per_second=touched / nanoseconds if touched and nanoseconds else None,
                gigaflops_per_second=flops / nanoseconds if flops and nanoseconds else None,
            )
        )
    moved: dict[str, tuple[int, int]] = {}
    for event in events:
        kind, bytes_ = event.facts.get("kind"), event.facts.get("bytes")
        if event.name == "transfer" and isinstance(kind, str):
            count, size = moved.get(kind, (0, 0))
            moved[kind] = count + 1, size + _counted(bytes_)
    return Summary(rows=tuple(rows), transfers=moved)


def _within(span: Span, parent: Span | None) -> int:
    """Nanoseconds of a span that lie in the one around it; a generator's or a task's may outlive that."""
    if parent is None or span.device is not None:
        return span.nanoseconds
    return max(0, min(span.ended, parent.ended) - max(span.began, parent.began))


def _counted(fact: Any) -> int:
    """A count that a span says; a fact of anyone's own may have the same name and be none."""
    return fact if type(fact) is int else 0
