"""Schedules: every contribution enters once, every rank ends with everything, and gloo's cuts are gloo's."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest

from samebits.sim.numerics import Part, trees_of
from samebits.sim.ring import (
    all_reduce_cut,
    gloo_ring,
    gloo_rooted_ring,
    ring,
    ring_all_gather,
    ring_reduce_scatter,
    rooted_cut,
)
from samebits.sim.schedule import LinkClass, Schedule, nodes_of
from samebits.sim.trees import converge, hierarchical, rank_chain, tree

ALGORITHMS: dict[str, Callable[[int, int], Schedule]] = {
    "gloo": gloo_ring,
    "ring": ring,
    "tree": tree,
    "chain": rank_chain,
    "chain in pieces": lambda ranks, elements: rank_chain(ranks, elements, pieces=3),
}


def leaves(part: Part, ranks: int, holder: int = 0) -> Counter[int]:
    """How often each rank's value enters a tree."""
    if not part.nodes:
        return Counter([holder])
    counts = [Counter([rank]) for rank in range(ranks)]
    for local, received in part.nodes:
        counts.append(counts[local] + counts[received])
    return counts[-1]


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("elements", [0, 1, 7, 64])
def test_each_contribution_enters_once_and_every_rank_ends_with_everything(
    name: str, ranks: int, elements: int
) -> None:
    schedule = ALGORITHMS[name](ranks, elements)
    everywhere = [trees_of(schedule, holder) for holder in range(ranks)]
    if ranks > 1:
        assert all(parts == everywhere[0] for parts in everywhere)
    for part in everywhere[0]:
        assert leaves(part, ranks) == Counter(range(ranks))
    assert sum(part.end - part.begin for part in everywhere[0]) == elements


def test_a_contribution_that_enters_twice_is_noticed() -> None:
    """Planted fault: a chain that takes its last hop twice."""
    first, last, *back = rank_chain(3, 9).rounds()
    broken = Schedule("broken", 3, 9, 4, lambda: iter([first, last, last, *back]))
    assert any(leaves(part, 3) != Counter(range(3)) for part in trees_of(broken))


def test_gloos_cuts() -> None:
    """7 float32 on 3 ranks: segments of 8 bytes, chunks of 4, 3 and 0 elements; large buffers are cut two ways."""
    small, large, rooted = all_reduce_cut(28, 4, 3), all_reduce_cut(10_000_012, 4, 3), rooted_cut(10_000_012, 4, 3)
    assert (small.segment, small.chunk) == (8, 16)
    assert (large.count, large.segment, rooted.segment) == (12, 833_336, 1_048_576)


def test_gloos_order_is_downwards_from_the_rank_before_the_owner() -> None:
    """Chunk c: x[c-1], then op(x[c-2], ...), ..., op(x[c], ...): the local operand first."""
    first, second, *_ = trees_of(gloo_ring(3, 24))
    assert first.nodes == ((1, 2), (0, 3)) and second.nodes == ((2, 0), (1, 3))


def test_the_rooted_ring_ends_on_its_root() -> None:
    for part in trees_of(gloo_rooted_ring(4, 100, root=2), holder=2):
        assert leaves(part, 4) == Counter(range(4))


def test_halves_of_the_ring() -> None:
    whole = [one.reduce for one in ring(4, 16).rounds()]
    parts = [one.reduce for half in (ring_reduce_scatter, ring_all_gather) for one in half(4, 16).rounds()]
    assert whole == parts == [True] * 3 + [False] * 3


@pytest.mark.parametrize("exchange", ["ring", "torus", "mesh"])
@pytest.mark.parametrize(("sips", "cubes", "pes"), [((3, 2), (2, 2), 2), ((2, 1), (1, 1), 1), ((1, 1), (4, 4), 1)])
def test_R52_the_hierarchy_sums_everything_on_every_level_of_links(
    sips: tuple[int, int], cubes: tuple[int, int], pes: int, exchange: str
) -> None:
    schedule = hierarchical(6, sips=sips, cubes=cubes, pes=pes, exchange=exchange)  # type: ignore[arg-type]
    assert schedule.coordinates is not None
    for part in trees_of(schedule):
        assert leaves(part, schedule.ranks) == Counter(range(schedule.ranks))
    for one in schedule.rounds():
        for src, dst, link in zip(one.src, one.dst, one.link, strict=True):
            here, there = schedule.coordinates[src], schedule.coordinates[dst]
            level = LinkClass.SIP if here[0] != there[0] else LinkClass.CUBE if here[1] != there[1] else LinkClass.PE
            assert link == level


def test_R52_a_centre_root_takes_eight_steps_where_a_corner_takes_twelve() -> None:
    """There and back, rows and columns of 4 x 4."""
    assert [2 * len(converge(4, 4, root)) for root in ((2, 2), (0, 0))] == [8, 12]


def test_rounds_of_thousands_of_ranks_are_cheap() -> None:
    """8,190 rounds of 4,096 transfers are windows on two tables: well under a second of this process's time."""
    start = time.process_time()
    rounds = sum(1 for _ in ring(4096, 1 << 20).rounds())
    assert rounds == 8190 and time.process_time() - start < 1.0


def test_links_between_nodes() -> None:
    one = next(iter(ring(4, 8, link=nodes_of(2)).rounds()))
    assert [LinkClass(link) for link in one.link] == [LinkClass.SIP, LinkClass.NODE, LinkClass.SIP, LinkClass.NODE]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ring(0, 4),
        lambda: gloo_rooted_ring(2, 4, root=2),
        lambda: rank_chain(2, 4, pieces=0),
        lambda: converge(2, 2, (2, 0)),
    ],
)
def test_impossible_schedules_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="got"):
        make()
