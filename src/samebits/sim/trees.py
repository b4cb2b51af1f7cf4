"""Schedules that are no ring: the fixed binary tree, the chain from rank to rank, and the three-level hierarchy.

The tree and the chain combine in an order that no number of elements changes. The hierarchy reduces over the PEs of a
cube, over the cubes of a SIP and over the SIPs, each level on links of its own class, and broadcasts back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import numpy as np

from samebits.sim.ring import SIPS, ring
from samebits.sim.schedule import IntArray, LinkClass, LinkOf, Round, Schedule, check_size, edges, over

Pair = tuple[int, int]
Step = list[Pair]
EXCHANGES: Final = ("ring", "torus", "mesh")


def _whole(pairs: Sequence[Pair], elements: int, link: LinkOf, *, reduce: bool) -> Round:
    """A round in which each (source, destination) moves the whole buffer."""
    src, dst = (np.array([pair[side] for pair in pairs], dtype=np.int64) for side in (0, 1))
    begin = np.zeros(len(pairs), dtype=np.int64)
    return Round(src, dst, begin, begin + elements, link(src, dst), reduce)


def _back(steps: Sequence[Step]) -> list[Step]:
    """The broadcast that undoes a reduction: its steps in reverse, each pair turned round."""
    return [[(dst, src) for src, dst in step] for step in reversed(steps)]


def _tree_steps(ranks: int) -> list[Step]:
    """Neighbours first: at level l rank r, a multiple of 2^(l+1), takes in rank r + 2^l."""
    steps, distance = [], 1
    while distance < ranks:
        steps.append([(low + distance, low) for low in range(0, ranks - distance, 2 * distance)])
        distance *= 2
    return steps


def tree(ranks: int, elements: int, itemsize: int = 4, *, link: LinkOf = SIPS) -> Schedule:
    """A fixed binary tree to rank 0 and back: ((x0 + x1) + (x2 + x3)) + ..., whatever the number of elements."""
    check_size(ranks, elements, itemsize)
    steps = _tree_steps(ranks)

    def rounds() -> Iterator[Round]:
        yield from (_whole(step, elements, link, reduce=True) for step in steps)
        yield from (_whole(step, elements, link, reduce=False) for step in _back(steps))

    return Schedule("binary tree all-reduce", ranks, elements, itemsize, rounds)


def tree_down(ranks: int, elements: int, itemsize: int = 4, *, root: int = 0, link: LinkOf = SIPS) -> Schedule:
    """A broadcast: down a binary tree from `root`, whole buffers."""
    check_size(ranks, elements, itemsize)
    steps = _back(_tree_steps(ranks))

    def rounds() -> Iterator[Round]:
        for step in steps:
            pairs = [((src + root) % ranks, (dst + root) % ranks) for src, dst in step]
            yield _whole(pairs, elements, link, reduce=False)

    return Schedule("binary tree broadcast", ranks, elements, itemsize, rounds)


def one_by_one(ranks: int, elements: int, itemsize: int = 4, *, root: int = 0, link: LinkOf = SIPS) -> Schedule:
    """A scatter: the root sends every other rank its piece, one after another."""
    check_size(ranks, elements, itemsize)
    begin, end = edges(elements, -(-elements // ranks), ranks)

    def rounds() -> Iterator[Round]:
        for place in range(ranks):
            if place != root:
                src, dst = np.array([root], dtype=np.int64), np.array([place], dtype=np.int64)
                piece = slice(place, place + 1)
                yield Round(src, dst, begin[piece], end[piece], link(src, dst), False)

    return Schedule("scatter", ranks, elements, itemsize, rounds, in_flight=ranks)


def rank_chain(ranks: int, elements: int, itemsize: int = 4, *, pieces: int = 1, link: LinkOf = SIPS) -> Schedule:
    """An accumulator passed from rank 0 up to the last, in pieces that follow each other, then the result passed down.

    With pieces p the chain takes W - 1 + p - 1 rounds each way. The addition is ((x0 + x1) + x2) + ... for every p."""
    check_size(ranks, elements, itemsize)
    if pieces < 1:
        raise ValueError(f"a chain needs at least one piece, got {pieces}")
    begin, end = edges(elements, -(-elements // pieces), pieces)

    def rounds() -> Iterator[Round]:
        for upwards in (True, False):
            for i in range(ranks - 1 + pieces - 1 if ranks > 1 else 0):
                hop = np.arange(max(0, i - pieces + 1), min(ranks - 1, i + 1), dtype=np.int64)
                src, dst = (hop, hop + 1) if upwards else (ranks - 1 - hop, ranks - 2 - hop)
                yield Round(src, dst, begin[i - hop], end[i - hop], link(src, dst), upwards)

    return Schedule("rank-to-rank chain", ranks, elements, itemsize, rounds)


def converge(width: int, height: int, root: Pair) -> list[Step]:
    """Steps in which a mesh of cells (index y * width + x) sends everything to `root` = (x, y), from all sides.

    Rows first, from both ends towards the root's column; then that column, from both ends towards the root."""
    root_x, root_y = root
    if not (0 <= root_x < width and 0 <= root_y < height):
        raise ValueError(f"the root must lie in a mesh of {width} x {height}, got {root}")
    steps: list[Step] = []
    for away in range(max(root_x, width - 1 - root_x), 0, -1):
        ends = [(root_x + side * away, root_x + side * (away - 1)) for side in (-1, 1)]
        steps.append([(y * width + a, y * width + b) for y in range(height) for a, b in ends if 0 <= a < width])
    for away in range(max(root_y, height - 1 - root_y), 0, -1):
        ends = [(root_y + side * away, root_y + side * (away - 1)) for side in (-1, 1)]
        steps.append([(a * width + root_x, b * width + root_x) for a, b in ends if 0 <= a < height])
    return steps


def hierarchical(
    elements: int,
    itemsize: int = 4,
    *,
    sips: Pair,
    cubes: Pair,
    pes: int,
    root: Pair | None = None,
    exchange: Literal["ring", "torus", "mesh"] = "ring",
) -> Schedule:
    """All-reduce over the PEs of each cube, the cubes of each SIP and the SIPs; then back.

    `sips` and `cubes` are grids (width, height). `root` is the cube (x, y) of a SIP in which its sum gathers: the
    centre unless told. With pes=1 only one lane takes part and the first level falls away; with one cube the second."""
    per_sip = cubes[0] * cubes[1] * pes
    count = sips[0] * sips[1]
    check_size(min(per_sip * count, *cubes, *sips, pes), elements, itemsize)
    if exchange not in EXCHANGES:
        raise ValueError(f"exchange must be one of {', '.join(EXCHANGES)}, got {exchange!r}")
    at = root if root is not None else (cubes[0] // 2, cubes[1] // 2)
    members = tuple((s, c, p) for s in range(count) for c in range(cubes[0] * cubes[1]) for p in range(pes))
    rank = {member: number for number, member in enumerate(members)}
    in_cube = [
        [(rank[s, c, p], rank[s, c, 0]) for s in range(count) for c in range(cubes[0] * cubes[1])]
        for p in range(1, pes)
    ]
    in_sip = [[(rank[s, a, 0], rank[s, b, 0]) for s in range(count) for a, b in step] for step in converge(*cubes, at)]
    roots = np.array([rank[s, at[1] * cubes[0] + at[0], 0] for s in range(count)], dtype=np.int64)
    level = {LinkClass.PE: in_cube, LinkClass.CUBE: in_sip}

    def rounds() -> Iterator[Round]:
        for kind, steps in level.items():
            yield from (_whole(step, elements, over(kind), reduce=True) for step in steps)
        yield from _exchange(exchange, elements, sips, roots)
        for kind, steps in reversed(level.items()):
            yield from (_whole(step, elements, over(kind), reduce=False) for step in _back(steps))

    return Schedule(
        f"hierarchical all-reduce, {exchange} of SIPs", len(members), elements, itemsize, rounds, coordinates=members
    )


def _exchange(name: str, elements: int, grid: Pair, roots: IntArray) -> Iterator[Round]:
    """All-reduce between the SIPs' roots: one ring, rings along rows then columns, or a mesh towards its centre."""
    width, height = grid
    if name == "mesh":
        steps = converge(width, height, (width // 2, height // 2))
        for way, reduce in ((steps, True), (_back(steps), False)):
            for step in way:
                pairs = [(int(roots[a]), int(roots[b])) for a, b in step]
                yield _whole(pairs, elements, SIPS, reduce=reduce)
        return
    cells = np.arange(width * height).reshape(height, width)
    for lines in [cells.reshape(1, -1)] if name == "ring" else [cells, cells.T]:
        yield from _rings(elements, roots[lines])


def _rings(elements: int, lines: IntArray) -> Iterator[Round]:
    """One ring all-reduce a line, all at once; lines are rows of ranks."""
    count, length = lines.shape
    for one in ring(length, elements).rounds():
        src, dst = lines[:, one.src].ravel(), lines[:, one.dst].ravel()
        yield Round(src, dst, np.tile(one.begin, count), np.tile(one.end, count), SIPS(src, dst), one.reduce)
