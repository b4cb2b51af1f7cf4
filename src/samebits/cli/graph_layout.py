"""Places the boxes of a graph without cycles in columns, so that few lines cross and each leads from left to right.

Four steps: longest paths give columns, long edges get a stop in every column they pass, one
for all edges of a box, barycentre sweeps order each
column, and heights are the nearest to their neighbours' that leave room for every box. Knows names and edges only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean
from typing import Final, TypeAlias

# A box by its name, or what the long edges from a box share in a column that they pass: one trunk, not many lines.
Stop: TypeAlias = tuple[str, int]
Thing: TypeAlias = str | Stop

SWEEPS: Final = 24
STOP_HEIGHT: Final = 0.36
"""Of a box's: lines may run closer than boxes stand."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Column and height of every box, in boxes; and for every edge (below, above) the places it passes."""

    places: dict[str, tuple[int, float]]
    routes: dict[tuple[str, str], list[tuple[int, float]]]
    columns: int
    tall: float


def layered(below: Mapping[str, Sequence[str]]) -> Layout:
    """Boxes to the right of all that they rest on. `below` must have no cycle and name only its own keys."""
    if not below:
        raise ValueError("a layout needs at least one box")
    column = _columns(below)
    chains = {(low, name): _chain(low, name, column) for name in sorted(below) for low in sorted(below[name])}
    columns: list[list[Thing]] = [[] for _ in range(max(column.values()) + 1)]
    for name in sorted(below):
        columns[column[name]].append(name)
    for low, number in sorted({stop for chain in chains.values() for stop in chain[1:-1] if isinstance(stop, tuple)}):
        columns[number].append((low, number))
    links = dict.fromkeys(pair for chain in chains.values() for pair in pairwise(chain))
    left: dict[Thing, list[Thing]] = {thing: [] for things in columns for thing in things}
    right: dict[Thing, list[Thing]] = {thing: [] for thing in left}
    for start, end in links:
        left[end].append(start)
        right[start].append(end)
    columns = _ordered(columns, left, right)
    heights = _heights(columns, left, right)
    where = {thing: (number, heights[thing]) for number, things in enumerate(columns) for thing in things}
    return Layout(
        places={name: where[name] for name in below},
        routes={edge: [where[thing] for thing in chain] for edge, chain in chains.items()},
        columns=len(columns),
        tall=max(heights.values()),
    )


def _columns(below: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The longest way to a foundation; a foundation itself moves next to the first that needs it."""
    column: dict[str, int] = {}
    while len(column) < len(below):
        ready = [name for name in below if name not in column and all(low in column for low in below[name])]
        if not ready:
            raise ValueError(f"a layout needs a graph without cycles; stuck at {min(set(below) - set(column))!r}")
        for name in ready:
            column[name] = max((column[low] + 1 for low in below[name]), default=0)
    for name in below:
        above = [column[other] for other in below if name in below[other]]
        if not below[name] and above:
            column[name] = min(above) - 1
    return column


def _chain(low: str, high: str, column: Mapping[str, int]) -> list[Thing]:
    return [low, *((low, number) for number in range(column[low] + 1, column[high])), high]


Neighbours: TypeAlias = Mapping[Thing, Sequence[Thing]]


def _ordered(columns: list[list[Thing]], left: Neighbours, right: Neighbours) -> list[list[Thing]]:
    """Sweeps right and left; the best order seen is kept."""
    best, fewest = [list(things) for things in columns], _crossings(columns, right)
    for sweep in range(SWEEPS):
        beside, numbers = (left, range(1, len(columns))) if sweep % 2 == 0 else (right, range(len(columns) - 2, -1, -1))
        for number in numbers:
            rank = {thing: place for things in columns for place, thing in enumerate(things)}
            # Without a neighbour there a thing keeps its place; sorting is stable, so that ties keep theirs.
            columns[number].sort(
                key=lambda thing: fmean(rank[each] for each in beside[thing]) if beside[thing] else rank[thing]
            )
        if (crossings := _crossings(columns, right)) < fewest:
            best, fewest = [list(things) for things in columns], crossings
    return best


def _crossings(columns: Sequence[Sequence[Thing]], right: Neighbours) -> int:
    total = 0
    for things, following in pairwise(columns):
        rank = {thing: place for place, thing in enumerate(following)}
        ends = [sorted(rank[each] for each in right[thing]) for thing in things]
        seen: list[int] = []
        for group in ends:
            total += sum(before > end for end in group for before in seen)
            seen += group
    return total


def _heights(columns: Sequence[Sequence[Thing]], left: Neighbours, right: Neighbours) -> dict[Thing, float]:
    """Each thing as near as may be to the mean of its neighbours, in its order and with its component."""
    heights: dict[Thing, float] = {}
    for things in columns:
        heights.update(zip(things, _offsets(things), strict=True))
    for _ in range(SWEEPS):
        for things in columns:
            wanted = [fmean(heights[each] for each in (*left[thing], *right[thing], thing)) for thing in things]
            heights.update(zip(things, _spread(things, wanted), strict=True))
    lowest = min(heights.values())
    return {thing: height - lowest for thing, height in heights.items()}


def _offsets(things: Sequence[Thing]) -> list[float]:
    """Where each stands if all stand as close as they may."""
    sizes = [1.0 if isinstance(each, str) else STOP_HEIGHT for each in things]
    return list(accumulate((fmean(pair) for pair in pairwise(sizes)), initial=0.0))[: len(things)]


def _spread(things: Sequence[Thing], wanted: Sequence[float]) -> list[float]:
    """The nearest heights, in squares, that keep order and gaps: neighbours that would overlap move as one block."""
    offsets = _offsets(things)
    blocks: list[tuple[float, int]] = []
    for target, offset in zip(wanted, offsets, strict=True):
        blocks.append((target - offset, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (upper, count), (lower, before) = blocks.pop(), blocks.pop()
            blocks.append(((lower * before + upper * count) / (before + count), before + count))
    starts = [mean for mean, count in blocks for _ in range(count)]
    return [start + offset for start, offset in zip(starts, offsets, strict=True)]
