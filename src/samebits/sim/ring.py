"""Rings: gloo's two (their cuts decide bits, and are gloo's own), and one in the manner of NCCL, which is a model.

Rank indices are taken modulo W. In gloo's rings a chunk c starts on rank c - 1, moves downwards and ends on rank c; in
the plain ring it starts on rank c + 1, moves upwards and ends on rank c."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np

from samebits.sim.schedule import IntArray, LinkClass, LinkOf, Round, Schedule, check_size, edges, over, travel

# Decides bits: gloo's largest segment, in bytes.
GLOO_SEGMENT: Final = 1 << 20
# gloo keeps two segments of a rank under way.
GLOO_IN_FLIGHT: Final = 2
SIPS: Final = over(LinkClass.SIP)


@dataclass(frozen=True, slots=True)
class Cut:
    """How gloo cuts a buffer: `count` segments of `segment` bytes, `per` of them a chunk."""

    count: int
    segment: int
    per: int

    @property
    def chunk(self) -> int:
        return self.per * self.segment


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _cap(itemsize: int) -> int:
    return itemsize * max(1, GLOO_SEGMENT // itemsize)


def all_reduce_cut(nbytes: int, itemsize: int, ranks: int) -> Cut:
    """gloo's all-reduce: the count of segments first, then their size."""
    count = _up(max(-(-nbytes // _cap(itemsize)), 2 * ranks), ranks)
    return Cut(count, _up(-(-nbytes // count), itemsize), count // ranks)


def rooted_cut(nbytes: int, itemsize: int, ranks: int) -> Cut:
    """gloo's reduce to one root: the size of a segment first, so that large buffers are cut elsewhere."""
    segment = max(itemsize, _up(min(-(-nbytes // (2 * ranks)), _cap(itemsize)), itemsize))
    count = _up(max(-(-nbytes // segment), 2 * ranks), ranks)
    return Cut(count, segment, count // ranks)


def _around(ranks: int, step: int, link: LinkOf) -> tuple[IntArray, IntArray, IntArray]:
    src = np.arange(ranks, dtype=np.int64)
    dst = (src + step) % ranks
    return src, dst, link(src, dst)


def gloo_ring(ranks: int, elements: int, itemsize: int = 4, *, link: LinkOf = SIPS) -> Schedule:
    """gloo's ring all-reduce: every rank ends with the whole sum."""
    check_size(ranks, elements, itemsize)
    cut = all_reduce_cut(elements * itemsize, itemsize, ranks)

    def rounds() -> Iterator[Round]:
        if ranks == 1 or elements == 0:
            return
        src, dst, wires = _around(ranks, -1, link)
        pieces = edges(elements, cut.segment // itemsize, cut.count)
        count = (ranks - 1) * cut.per
        yield from travel(src, dst, *pieces, wires, cut.per, 1, cut.per, count, reduce=True)
        yield from travel(src, dst, *pieces, wires, 0, 1, cut.per, count, reduce=False)

    return Schedule("gloo ring all-reduce", ranks, elements, itemsize, rounds, GLOO_IN_FLIGHT)


def gloo_rooted_ring(ranks: int, elements: int, itemsize: int = 4, *, root: int = 0, link: LinkOf = SIPS) -> Schedule:
    """gloo's reduce: the ring's first half with the rooted cut, then every owner sends its chunk to the root."""
    check_size(ranks, elements, itemsize)
    if not 0 <= root < ranks:
        raise ValueError(f"the root must lie in 0..{ranks - 1}, got {root}")
    cut = rooted_cut(elements * itemsize, itemsize, ranks)

    def rounds() -> Iterator[Round]:
        if ranks == 1 or elements == 0:
            return
        src, dst, wires = _around(ranks, -1, link)
        pieces = edges(elements, cut.segment // itemsize, cut.count)
        yield from travel(src, dst, *pieces, wires, cut.per, 1, cut.per, (ranks - 1) * cut.per, reduce=True)
        others = np.delete(src, root)
        begin, end = edges(elements, cut.chunk // itemsize, ranks)
        to = np.full(ranks - 1, root, dtype=np.int64)
        yield Round(others, to, begin[others], end[others], link(others, to), False)

    return Schedule("gloo rooted ring", ranks, elements, itemsize, rounds, GLOO_IN_FLIGHT, holders=(root,))


def _reduce_scatter_rounds(ranks: int, elements: int, link: LinkOf) -> Iterator[Round]:
    src, dst, wires = _around(ranks, 1, link)
    pieces = edges(elements, -(-elements // ranks), ranks)
    return travel(src, dst, *pieces, wires, -1, -1, 1, ranks - 1, reduce=True)


def _all_gather_rounds(ranks: int, elements: int, link: LinkOf) -> Iterator[Round]:
    src, dst, wires = _around(ranks, 1, link)
    pieces = edges(elements, -(-elements // ranks), ranks)
    return travel(src, dst, *pieces, wires, 0, -1, 1, ranks - 1, reduce=False)


def ring(ranks: int, elements: int, itemsize: int = 4, *, link: LinkOf = SIPS) -> Schedule:
    """A plain ring all-reduce in W chunks: 2(W-1) rounds. A model of NCCL's ring, not a claim about its bits."""
    check_size(ranks, elements, itemsize)

    def rounds() -> Iterator[Round]:
        return chain(_reduce_scatter_rounds(ranks, elements, link), _all_gather_rounds(ranks, elements, link))

    return Schedule("ring all-reduce", ranks, elements, itemsize, rounds)


def ring_reduce_scatter(ranks: int, elements: int, itemsize: int = 4, *, link: LinkOf = SIPS) -> Schedule:
    """The first half of `ring`: rank r ends with chunk r of the sum."""
    check_size(ranks, elements, itemsize)
    return Schedule(
        "ring reduce-scatter",
        ranks,
        elements,
        itemsize,
        lambda: _reduce_scatter_rounds(ranks, elements, link),
        holders=(),
    )


def ring_all_gather(ranks: int, elements: int, itemsize: int = 4, *, link: LinkOf = SIPS) -> Schedule:
    """The second half of `ring`: every rank ends with the chunk of each."""
    check_size(ranks, elements, itemsize)
    return Schedule("ring all-gather", ranks, elements, itemsize, lambda: _all_gather_rounds(ranks, elements, link))
