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
from samebits.sim.schedule import LinkClass
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
