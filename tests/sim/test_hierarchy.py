"""All-reduce on three levels, run as PE programs through queues: bits, links, hops, and the exchange between SIPs."""

from __future__ import annotations

import numpy as np
import pytest

from samebits.sim.accelerator import accelerator, machine_of
from samebits.sim.kernels import Launch
from samebits.sim.machine import Machine
from samebits.sim.ring import ring
from samebits.sim.schedule import LinkClass, Schedule
from samebits.sim.schedule_kernel import direction_of, multi_pe_sip_local, neighbours_of, places_of, run_schedule
from samebits.sim.topology import PE
from samebits.sim.trees import converge, hierarchical


def values(rank: int, elements: int) -> np.ndarray:
    return np.random.default_rng(rank).standard_normal(elements).astype(np.float32)


def on_machine(schedule: Schedule, machine: Machine) -> tuple[Launch, list[np.ndarray]]:
    return run_schedule(machine, schedule, lambda rank: values(rank, schedule.elements))


def applied(schedule: Schedule) -> list[np.ndarray]:
    """The schedule carried out on arrays, round by round, as its definition says."""
    held = [values(rank, schedule.elements) for rank in range(schedule.ranks)]
    for one in schedule.rounds():
        before = [each.copy() for each in held]
        for src, dst, begin, end in zip(one.src, one.dst, one.begin, one.end, strict=True):
            part = before[src][begin:end]
            held[dst][begin:end] = held[dst][begin:end] + part if one.reduce else part
    return held


@pytest.mark.parametrize("exchange", ["ring", "torus", "mesh"])
@pytest.mark.parametrize(("sips", "cubes", "pes"), [((3, 2), (2, 2), 3), ((2, 2), (4, 4), 1), ((4, 1), (1, 1), 4)])
def test_R52_every_pe_ends_with_the_same_bits(
    exchange: str, sips: tuple[int, int], cubes: tuple[int, int], pes: int
) -> None:
    schedule = hierarchical(500, sips=sips, cubes=cubes, pes=pes, exchange=exchange)  # type: ignore[arg-type]
    topology = accelerator(sips[0] * sips[1], *sips, cube_mesh=cubes, pes=pes, torus=exchange != "mesh")
    _, found = on_machine(schedule, machine_of(topology))
    assert len({each.tobytes() for each in found}) == 1
    assert [each.tobytes() for each in found] == [each.tobytes() for each in applied(schedule)]


def test_R52_each_level_keeps_to_its_own_links() -> None:
    schedule = hierarchical(500, sips=(3, 2), cubes=(2, 2), pes=3)
    topology = accelerator(6, 3, 2, cube_mesh=(2, 2), pes=3)
    for one in schedule.rounds():
        places = places_of(schedule)
        for src, dst, link in zip(one.src, one.dst, one.link, strict=True):
            a, b = places[src], places[dst]
            level = LinkClass.SIP if a.sip != b.sip else LinkClass.CUBE if a.cube != b.cube else LinkClass.PE
            assert level == link
            if level is LinkClass.SIP:
                assert a.cube == b.cube == topology.root_cube and a.pe == b.pe == 0


def test_R52_the_ring_exchange_sends_no_more_than_a_ring_must() -> None:
    """At most 2 (S - 1) / S n bytes on any link between SIPs, credits apart."""
    sips, elements = 4, 1200
    schedule = hierarchical(elements, sips=(sips, 1), cubes=(2, 2), pes=2)
    machine = machine_of(accelerator(sips, sips, 1, cube_mesh=(2, 2), pes=2))
    on_machine(schedule, machine)
    credits = 16 * 2 * (sips - 1)
    on_links = {wire: sent for wire, sent in machine.wires.bytes_on.items() if wire[0] == "sip"}
    data = [sent for sent in on_links.values() if sent > credits]
    assert len(data) == sips and max(data) <= 2 * (sips - 1) / sips * elements * 4


def test_R52_the_centre_as_root_takes_eight_hops_where_the_corner_takes_twelve() -> None:
    assert 2 * len(converge(4, 4, (2, 2))) == 8 and 2 * len(converge(4, 4, (0, 0))) == 12
    took = {}
    for name, root in (("corner", (0, 0)), ("centre", None)):
        schedule = hierarchical(96 * 1024 // 4, sips=(3, 2), cubes=(4, 4), pes=1, root=root, exchange="torus")
        launch, _ = on_machine(schedule, machine_of(accelerator(6, 3, 2)))
        took[name] = launch.finish - launch.started[PE(0, 0, 0)]
    assert took["centre"] < took["corner"]


def test_R52_a_launch_of_one_cube_skips_the_mesh() -> None:
    schedule = hierarchical(64, sips=(2, 2), cubes=(1, 1), pes=4)
    machine = machine_of(accelerator(4, cube_mesh=(1, 1), pes=4))
    on_machine(schedule, machine)
    assert machine.wires.bytes_at[LinkClass.CUBE] == 0 and machine.wires.bytes_at[LinkClass.SIP] > 0


def test_R52_mapper_and_validator() -> None:
    topology = accelerator(2, 2, 1)
    everything = list(topology.all_pes())
    assert len(everything) == 2 * 16 * 8 == len(set(everything))
    multi_pe_sip_local(list(topology.all_pes(sips=[1], cubes=4, pes=2)), topology)
    with pytest.raises(ValueError, match=r"PEs of SIPs \[0, 1\]; allowed: of one"):
        multi_pe_sip_local(everything, topology)
    with pytest.raises(ValueError, match=r"cube 1 of the group has PEs \[1\]; allowed: \[0\]"):
        multi_pe_sip_local([PE(0, 0, 0), PE(0, 1, 1)], topology)


def test_payloads_larger_than_a_slot_travel_in_pieces() -> None:
    """A ring of buffers that fill ten slots, four of which are there."""
    schedule = ring(4, 3 * 40960)
    machine = machine_of(accelerator(4, 4, 1, cube_mesh=(1, 1), pes=1))
    machine.queues.settings = type(machine.queues.settings)(slots=2, slot_bytes=4096)
    _, found = on_machine(schedule, machine)
    assert [each.tobytes() for each in found] == [each.tobytes() for each in applied(schedule)]
    assert machine.queues.pair(PE(0, 0, 0), "sip_E").sent == 6 * 30


def test_queues_are_named_by_sides_of_the_mesh() -> None:
    topology = accelerator(6, 3, 2)
    root = topology.root_cube
    assert direction_of(topology, PE(0, 0, 0), PE(0, 1, 0)) == "E"
    assert direction_of(topology, PE(0, 4, 0), PE(0, 0, 0)) == "N"
    assert direction_of(topology, PE(0, root, 0), PE(2, root, 0)) == "sip_W", "joined at the ends of the row"
    assert direction_of(topology, PE(0, root, 0), PE(5, root, 0)).startswith("sip5")
    table = neighbours_of(hierarchical(8, sips=(3, 2), cubes=(2, 2), pes=2), topology)
    assert all(place in table[to].values() for place, queues in table.items() for to in queues.values())
