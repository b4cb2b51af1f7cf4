"""Arrays of clocks give the closed forms, and what a loop over messages gives."""

from __future__ import annotations

import cProfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samebits.sim.ring import gloo_ring, ring, ring_all_gather, ring_reduce_scatter
from samebits.sim.schedule import LinkClass, Schedule, nodes_of
from samebits.sim.timing import (
    bus_bandwidth,
    chain_all_reduce,
    finish_times,
    hierarchical_all_reduce,
    paced,
    ring_all_reduce,
    ring_half,
    served,
    tree_all_reduce,
)
from samebits.sim.topology import Link
from samebits.sim.trees import hierarchical, rank_chain, tree

LINK = Link(2e-6, 200e9)
LINKS = {LinkClass.SIP: LINK}
EXACT = 1e-12


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 31, 128, 1000])
def test_L1_arrays_equal_the_closed_forms(ranks: int) -> None:
    """Within 1e-12: ring, its halves, chain."""
    elements = 250 * ranks
    nbytes = 4 * elements
    for schedule, closed in (
        (ring(ranks, elements), ring_all_reduce(nbytes, ranks, LINK)),
        (ring_reduce_scatter(ranks, elements), ring_half(nbytes, ranks, LINK)),
        (ring_all_gather(ranks, elements), ring_half(nbytes, ranks, LINK)),
        (rank_chain(ranks, elements, pieces=10), chain_all_reduce(nbytes, ranks, LINK, 10)),
    ):
        assert finish_times(schedule, LINKS).max() == pytest.approx(closed, rel=EXACT), schedule.algorithm


@pytest.mark.parametrize("ranks", [1, 2, 4, 16, 256, 1024])
def test_L1_a_tree_over_a_power_of_two_equals_its_closed_form(ranks: int) -> None:
    found = finish_times(tree(ranks, 1000), LINKS).max()
    assert found == pytest.approx(tree_all_reduce(4000, ranks, LINK), rel=EXACT)


@pytest.mark.parametrize("ranks", [2, 5, 64, 500])
@pytest.mark.parametrize("late", [1e-7, 3e-6, 1e-3])
def test_L1_one_late_rank_on_an_idle_ring_costs_its_lateness_once(ranks: int, late: float) -> None:
    clocks = np.zeros(ranks)
    clocks[ranks // 3] = late
    finish = finish_times(ring(ranks, 10 * ranks), LINKS, clocks).max()
    assert finish == pytest.approx(late + ring_all_reduce(40 * ranks, ranks, LINK), rel=EXACT)


def test_L1_levels_add_up_in_a_hierarchy() -> None:
    """Within nodes over one link, across them over another: the sum of the parts."""
    near, far = Link(1e-6, 300e9), Link(5e-6, 50e9)
    parts = (
        finish_times(ring_reduce_scatter(8, 8 * 1000), {LinkClass.SIP: near}).max()
        + finish_times(ring(16, 1000 * 16), {LinkClass.SIP: far}).max()
        + finish_times(ring_all_gather(8, 8 * 1000), {LinkClass.SIP: near}).max()
    )
    assert parts == pytest.approx(2 * ring_half(32000, 8, near) + ring_all_reduce(4 * 16000, 16, far), rel=EXACT)
    assert hierarchical_all_reduce(8 * 64000, 8, 16, near, far) == pytest.approx(
        2 * ring_half(8 * 64000, 8, near) + ring_all_reduce(64000, 16, far), rel=EXACT
    )


def one_by_one(schedule: Schedule, links: dict[LinkClass, Link], clocks: np.ndarray) -> list[float]:
    """The same clock, as a loop over messages."""
    now, free = clocks.tolist(), {}
    before = [list(now)] * schedule.in_flight
    for one in schedule.rounds():
        arrivals = []
        for src, dst, begin, end, level in zip(one.src, one.dst, one.begin, one.end, one.link, strict=True):
            if begin == end:
                continue
            link, port = links[LinkClass(int(level))], (int(src), int(level))
            start = max(before[0][src], free.get(port, float("-inf")))
            free[port] = start + (end - begin) * schedule.itemsize / link.bytes_per_s
            arrivals.append((int(dst), start + link.alpha + (end - begin) * schedule.itemsize / link.bytes_per_s))
        for dst, arrival in arrivals:
            now[dst] = max(now[dst], arrival)
        before = [*before[1:], list(now)]
    return now


@given(
    st.integers(2, 12), st.integers(0, 300), st.integers(0, 10_000), st.sampled_from(["ring", "gloo", "nodes", "tree"])
)
@settings(max_examples=60, deadline=None)
def test_arrays_equal_a_loop_over_messages(ranks: int, elements: int, seed: int, kind: str) -> None:
    make = {"ring": ring, "gloo": gloo_ring, "tree": tree, "nodes": ring}[kind]
    schedule = make(ranks, elements, link=nodes_of(3)) if kind == "nodes" else make(ranks, elements)
    links = {LinkClass.SIP: LINK, LinkClass.NODE: Link(9e-6, 25e9)}
    clocks = np.random.default_rng(seed).random(ranks) * 1e-5
    assert finish_times(schedule, links, clocks).tolist() == pytest.approx(
        one_by_one(schedule, links, clocks), rel=1e-13
    )


def test_a_hierarchy_is_timed_on_the_links_of_its_levels() -> None:
    links = {LinkClass.PE: Link(1e-8, 1e11), LinkClass.CUBE: Link(2e-8, 1e11), LinkClass.SIP: Link(1e-6, 1e11)}
    schedule = hierarchical(1000, sips=(2, 2), cubes=(2, 2), pes=2)
    assert finish_times(schedule, links).max() > 2 * 3 * 1e-6
    with pytest.raises(ValueError, match="uses links between SIP"):
        finish_times(schedule, {LinkClass.PE: LINK, LinkClass.CUBE: LINK})
    with pytest.raises(ValueError, match=r"clocks of shape \(3,\) for 16 ranks"):
        finish_times(ring(16, 16), LINKS, np.zeros(3))


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=50))
def test_messages_on_one_link_wait_for_each_other(messages: list[tuple[float, float]]) -> None:
    ready, service = np.array(messages).T
    finish, loop = 0.0, []
    for at, takes in messages:
        finish = max(at, finish) + takes
        loop.append(finish)
    assert served(ready, service).tolist() == pytest.approx(loop, rel=1e-13, abs=1e-13)
    same = np.full(len(messages), 0.25)
    assert paced(ready, 0.25).tolist() == pytest.approx(served(ready, same).tolist(), rel=1e-13, abs=1e-13)


def test_a_busy_port_is_noticed() -> None:
    """Planted fault: a clock that forgets that a port is taken would let late ranks catch up for nothing."""
    clocks = np.zeros(4)
    clocks[0] = 1.0
    bytes_bound = Link(0.0, 4.0)
    finish = finish_times(ring(4, 4), {LinkClass.SIP: bytes_bound}, clocks)
    assert finish.max() == pytest.approx(1.0 + 6 * 1.0)


def test_4096_ranks_are_a_few_calls_a_round() -> None:
    """33.5 million messages in 8,190 rounds: what is counted is calls, since clocks of shared machines say little."""
    schedule, profile = ring(4096, 4096 * 4), cProfile.Profile()
    finish = profile.runcall(finish_times, schedule, LINKS)
    calls = sum(entry.callcount for entry in profile.getstats())
    assert calls < 20 * 2 * 4095
    assert finish.max() == pytest.approx(ring_all_reduce(4 * 4096 * 4, 4096, LINK), rel=EXACT)


def test_bus_bandwidth_is_the_links_where_latency_is_nothing() -> None:
    link = Link(0.0, 200e9)
    for ranks in (2, 8, 64):
        assert bus_bandwidth(1e9, ring_all_reduce(1e9, ranks, link), ranks) == pytest.approx(200e9, rel=EXACT)
        assert bus_bandwidth(1e9, ring_half(1e9, ranks, link), ranks, halves=1) == pytest.approx(200e9, rel=EXACT)
