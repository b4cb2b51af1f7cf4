"""Time of programs that really run: the clocks of ranks are those of the schedules that made their bits."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from tests.sim.programs import ddp

from samebits.sim.cluster import Settings, execute
from samebits.sim.network import Parts
from samebits.sim.rank import current
from samebits.sim.ring import gloo_ring
from samebits.sim.run_timing import clocked
from samebits.sim.schedule import LinkClass, nodes_of
from samebits.sim.timing import finish_times, ring_half
from samebits.sim.topology import Link

LINK = Link(2e-6, 10e9)
LINKS = {LinkClass.SIP: LINK, LinkClass.NODE: Link(10e-6, 1e9)}
TIMED = Settings(parts=Parts(timing=clocked(LINKS)))


def reduces(rank: int, elements: int, late: float) -> torch.Tensor:
    dist.init_process_group("sim")
    own = current()
    assert own is not None
    own.clock += late * (rank == 1)
    x = torch.full((elements,), float(rank))
    dist.all_reduce(x)
    return x


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_an_all_reduce_takes_what_its_schedule_takes(ranks: int) -> None:
    found = execute(reduces, ranks, (1000, 0.0), settings=TIMED)
    assert found.clocks == pytest.approx(finish_times(gloo_ring(ranks, 1000), LINKS).tolist(), rel=1e-12)
    assert all(torch.equal(x, torch.full((1000,), float(sum(range(ranks))))) for x in found.results)


def test_F10_a_late_rank_makes_the_others_late_and_changes_no_bit() -> None:
    on_time, late = (execute(reduces, 4, (1000, seconds), settings=TIMED) for seconds in (0.0, 1e-3))
    assert max(late.clocks) == pytest.approx(max(on_time.clocks) + 1e-3, rel=1e-9)
    assert all(torch.equal(a, b) for a, b in zip(on_time.results, late.results, strict=True))


def test_E8_links_change_times_and_no_bit() -> None:
    def program(rank: int) -> str:
        dist.init_process_group("sim")
        return ddp()

    fast, slow = (
        execute(program, 3, settings=Settings(parts=Parts(timing=clocked({LinkClass.SIP: link}))))
        for link in (LINK, Link(1e-4, 1e8))
    )
    assert fast.results == slow.results and max(fast.clocks) < max(slow.clocks)


def test_all_gather_messages_and_barriers_take_time_too() -> None:
    def program(rank: int) -> float:
        dist.init_process_group("sim")
        own = current()
        assert own is not None
        parts = [torch.zeros(500) for _ in range(2)]
        dist.all_gather(parts, torch.ones(500))
        gathered = own.clock
        if rank == 0:
            dist.send(torch.ones(100), 1)
        else:
            dist.recv(torch.ones(100), 0)
        dist.barrier()
        return gathered

    found = execute(program, 2, settings=TIMED)
    assert found.results == pytest.approx([ring_half(4000, 2, LINK)] * 2, rel=1e-12)
    assert min(found.clocks) > ring_half(4000, 2, LINK) + LINK.seconds(400)


def test_messages_between_nodes_are_slower() -> None:
    def longest(ranks_per_node: int) -> float:
        parts = Parts(timing=clocked(LINKS, ranks_per_node=ranks_per_node))
        return max(execute(reduces, 4, (1000, 0.0), settings=Settings(parts=parts)).clocks)

    assert longest(2) > 3 * longest(4)


RANKS, FLOATS, NBYTES = 8, 250_000, 1e6
NEAR, FAR = LINKS[LinkClass.SIP], LINKS[LinkClass.NODE]


def calls(rank: int, what: str, root: int) -> float:
    """One collective or message of a megabyte; the seconds that this rank took for it."""
    dist.init_process_group("sim")
    x, own, size = torch.ones(FLOATS), current(), dist.get_world_size()
    assert own is not None
    # Ranks of both nodes, side by side in the group.
    apart = dist.new_group([0, size // 2])
    began = own.clock
    if what == "broadcast":
        dist.broadcast(x, root)
    elif what == "scatter":
        dist.scatter(torch.empty(FLOATS), [x] * size if rank == root else None, src=root)
    elif what == "gather":
        dist.gather(x, [torch.empty(FLOATS) for _ in range(size)] if rank == root else None, dst=root)
    elif what == "all-to-all":
        # The root sends nothing, and all others the same to everybody.
        sent, taken = [FLOATS * (rank != root)] * size, [FLOATS * (place != root) for place in range(size)]
        dist.all_to_all_single(torch.empty(sum(taken)), torch.ones(sum(sent)), taken, sent)
    elif what == "apart" and rank in (0, size // 2):
        dist.all_reduce(x, group=apart)
    elif what == "message" and rank in (0, size - 1):
        dist.send(x, size - 1) if rank == 0 else dist.recv(x, 0)
    return own.clock - began


def longest(what: str, root: int = 0, ranks_per_node: int | None = None) -> float:
    parts = Parts(timing=clocked(LINKS, ranks_per_node=ranks_per_node))
    return max(execute(calls, RANKS, (what, root), settings=Settings(parts=parts)).results)


@pytest.mark.parametrize("root", [0, 1, 5])
def test_any_root_takes_as_long_and_no_less_than_its_bytes(root: int) -> None:
    assert longest("broadcast", root) == pytest.approx(3 * NEAR.seconds(NBYTES))
    assert longest("scatter", root) == pytest.approx(7 * NBYTES / NEAR.bytes_per_s + NEAR.alpha)
    assert longest("gather", root) == pytest.approx(7 * NEAR.seconds(NBYTES))
    assert longest("all-to-all", root) == pytest.approx(7 * NEAR.seconds(NBYTES))


@pytest.mark.parametrize(("ranks_per_node", "link"), [(None, NEAR), (RANKS, NEAR), (RANKS // 2, FAR), (1, FAR)])
def test_ranks_of_a_group_are_where_they_are_in_the_world(ranks_per_node: int | None, link: Link) -> None:
    """All-reduce of two ranks, and a message, over the link between their nodes."""
    assert longest("apart", 0, ranks_per_node) == pytest.approx(2 * link.seconds(NBYTES / 2), rel=0.05)
    assert longest("message", 0, ranks_per_node) == pytest.approx(link.seconds(NBYTES))


def test_taken_for_neighbours_ranks_of_two_nodes_are_too_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: places in a group stand for ranks."""
    monkeypatch.setattr("samebits.sim.run_timing._between", lambda members, each: nodes_of(each))
    assert longest("apart", 0, RANKS // 2) < 0.2 * 2 * FAR.seconds(NBYTES / 2)


def test_links_that_nothing_is_said_of_are_refused_before_a_run() -> None:
    for links, each, name in (({LinkClass.NODE: FAR}, None, "SIP"), ({LinkClass.SIP: NEAR}, 2, "NODE")):
        with pytest.raises(ValueError, match=rf"^timing: .* links between {name}, which cost nothing said$"):
            clocked(links, ranks_per_node=each)
    assert clocked({LinkClass.NODE: FAR}, ranks_per_node=1)
    with pytest.raises(ValueError, match=r"^timing: ranks_per_node is 0; allowed: at least 1, or None for one node$"):
        clocked(LINKS, ranks_per_node=0)
