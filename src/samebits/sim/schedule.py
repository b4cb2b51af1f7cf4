"""The schedule of a collective: rounds of transfers as arrays, read by the numerics and by the clock alike.

Knows neither tensors nor time. A round's transfers all read what their sources held before the round began; what
arrives at one destination is applied in the order of the arrays, the local operand first. A transfer of no elements
is no message. The arrays of a ring are windows on two small tables, so that a round costs nothing to make and a
schedule of 4,096 ranks needs no memory of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
LinkOf = Callable[[IntArray, IntArray], IntArray]


class LinkClass(IntEnum):
    """What a message travels on."""

    PE = 0
    """Between two processing elements of one cube."""
    CUBE = 1
    """Between two cubes of one SIP."""
    SIP = 2
    """Between two SIPs (devices) of one node."""
    NODE = 3
    """Between two nodes."""


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """Transfers that may all be under way at once: src[i] sends its elements begin[i]:end[i] to dst[i]."""

    src: IntArray
    dst: IntArray
    begin: IntArray
    end: IntArray
    link: IntArray
    """The LinkClass of each transfer."""
    reduce: bool
    """True: dst becomes op(dst, received). False: dst becomes what it received."""

    @property
    def elements(self) -> IntArray:
        """How many elements each transfer carries; 0 is no message."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Schedule:
    """What one algorithm does with `elements` elements on `ranks` ranks, whoever executes or times it."""

    algorithm: str
    ranks: int
    elements: int
    itemsize: int
    rounds_of: Callable[[], Iterator[Round]] = field(repr=False, compare=False)
    in_flight: int = 1
    """How many rounds a rank may have under way: round i is posted once round i - in_flight is complete."""
    holders: tuple[int, ...] | None = None
    """The ranks that end with the whole result; None means all of them."""
    coordinates: tuple[tuple[int, ...], ...] | None = None
    """(sip, cube, pe) of each rank, where a rank is one of these; else a rank is one SIP."""

    def rounds(self) -> Iterator[Round]:
        return self.rounds_of()


def over(link: LinkClass) -> LinkOf:
    """Every transfer travels on one class of link."""
    return lambda src, dst: np.full(len(src), int(link), dtype=np.int64)


def nodes_of(ranks_per_node: int) -> LinkOf:
    """Transfers inside a node travel between SIPs, the others between nodes."""

    def link(src: IntArray, dst: IntArray) -> IntArray:
        same = src // ranks_per_node == dst // ranks_per_node
        return np.where(same, int(LinkClass.SIP), int(LinkClass.NODE)).astype(np.int64)

    return link


def edges(elements: int, size: int, count: int) -> tuple[IntArray, IntArray]:
    """Begin and end of `count` pieces of `size` elements each; late pieces may be short or empty."""
    begin = np.minimum(np.arange(count, dtype=np.int64) * size, elements)
    return begin, np.minimum(begin + size, elements)


def travel(
    src: IntArray,
    dst: IntArray,
    begin: IntArray,
    end: IntArray,
    link: IntArray,
    first: int,
    step: int,
    stride: int,
    count: int,
    *,
    reduce: bool,
) -> Iterator[Round]:
    """`count` rounds in which rank r sends piece (first + r * stride + i * step) mod pieces, i counting the rounds."""
    pieces = len(begin)
    begins, ends = np.concatenate((begin, begin)), np.concatenate((end, end))
    for i in range(count):
        at = (first + i * step) % pieces
        window = slice(at, at + len(src) * stride, stride)
        yield Round(src, dst, begins[window], ends[window], link, reduce)


def check_size(ranks: int, elements: int, itemsize: int) -> None:
    """ValueError for a schedule that cannot be."""
    if ranks < 1 or elements < 0 or itemsize < 1:
        raise ValueError(
            f"a schedule needs ranks >= 1, elements >= 0 and itemsize >= 1, got {ranks}, {elements} and {itemsize}"
        )
