"""A collective's schedule as PE programs: every transfer is a message through a queue, every PE walks its own rounds.

The same schedule object is executed by the numerics and timed by arrays; here its messages meet queues, credits and
links that others use too. A payload larger than a slot travels in pieces. Adding happens as a slot is copied."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from samebits.sim.kernels import Context, Launch, Request
from samebits.sim.machine import Machine
from samebits.sim.schedule import Schedule
from samebits.sim.topology import PE, Topology

Values = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Transfer:
    """A PE's side of one transfer."""

    direction: str
    begin: int
    end: int
    reduce: bool


@dataclass(slots=True)
class Turn:
    """What a PE does in one round."""

    sends: list[Transfer] = field(default_factory=list)
    receives: list[Transfer] = field(default_factory=list)


def direction_of(topology: Topology, at: PE, to: PE) -> str:
    """The name of the queue from one PE to another: a side of the mesh where they are neighbours on it."""
    if at.sip == to.sip and at.cube == to.cube:
        return f"pe{to.pe}"
    if at.sip == to.sip:
        here, there, size = topology.cell_of_cube(at.cube), topology.cell_of_cube(to.cube), topology.cube_mesh
        prefix, wrap = "", False
    else:
        here, there, size = topology.cell_of_sip(at.sip), topology.cell_of_sip(to.sip), topology.grid
        prefix, wrap = "sip_", topology.torus
    right, down = there[0] - here[0], there[1] - here[1]
    for axis, (offset, other, forward, backward) in enumerate(((right, down, "E", "W"), (down, right, "S", "N"))):
        if other == 0 and (offset == 1 or (wrap and offset == 1 - size[axis])):
            return prefix + forward
        if other == 0 and (offset == -1 or (wrap and offset == size[axis] - 1)):
            return prefix + backward
    return f"sip{to.sip} cube{to.cube} pe{to.pe}"


def places_of(schedule: Schedule) -> list[PE]:
    """The PE of each rank; where a rank is a SIP, the first PE of its first cube."""
    if schedule.coordinates is None:
        return [PE(rank, 0, 0) for rank in range(schedule.ranks)]
    return [PE(*coordinates) for coordinates in schedule.coordinates]


def turns_of(schedule: Schedule, topology: Topology) -> dict[PE, list[Turn]]:
    """Every PE's rounds, those left out in which it has nothing to do."""
    places = places_of(schedule)
    found: dict[PE, list[Turn]] = {place: [] for place in places}
    for one in schedule.rounds():
        turns: dict[PE, Turn] = {}
        for src, dst, begin, end in zip(
            one.src.tolist(), one.dst.tolist(), one.begin.tolist(), one.end.tolist(), strict=True
        ):
            if begin == end:
                continue
            at, to = places[src], places[dst]
            sent = Transfer(direction_of(topology, at, to), begin, end, one.reduce)
            turns.setdefault(at, Turn()).sends.append(sent)
            turns.setdefault(to, Turn()).receives.append(
                Transfer(direction_of(topology, to, at), begin, end, one.reduce)
            )
        for place, turn in turns.items():
            found[place].append(turn)
    return found


def neighbours_of(schedule: Schedule, topology: Topology) -> dict[PE, dict[str, PE]]:
    """The queues that a schedule needs, both ways."""
    places = places_of(schedule)
    table: dict[PE, dict[str, PE]] = {}
    for one in schedule.rounds():
        for src, dst in zip(one.src.tolist(), one.dst.tolist(), strict=True):
            for at, to in ((places[src], places[dst]), (places[dst], places[src])):
                table.setdefault(at, {})[direction_of(topology, at, to)] = to
    return table


def _pieces(transfers: Sequence[Transfer], most: int) -> list[tuple[int, Transfer, int, int]]:
    """(which piece, transfer, begin, end), first pieces first."""
    cut = [
        (number, each, at, min(at + most, each.end))
        for each in transfers
        for number, at in enumerate(range(each.begin, each.end, most))
    ]
    return sorted(cut, key=lambda piece: piece[0])


def schedule_kernel(pe: Context, values: Values, turns: Sequence[Turn], most: int) -> Generator[Request, Any, Values]:
    """Walks a PE's rounds on its values; `most` elements fit into a slot."""
    for turn in turns:
        # What is sent in a round is what was held before it.
        held = [
            (number, pe.send(each.direction, values[begin:end]))
            for number, each, begin, end in _pieces(turn.sends, most)
        ]
        arriving = _pieces(turn.receives, most)
        last = max([piece[0] for piece in held] + [piece[0] for piece in arriving], default=-1)
        for number in range(last + 1):
            for _, send in (piece for piece in held if piece[0] == number):
                yield send
            for _, each, begin, end in (piece for piece in arriving if piece[0] == number):
                received = yield pe.receive(each.direction)
                values[begin:end] = values[begin:end] + received if each.reduce else received
    return values


def run_schedule(machine: Machine, schedule: Schedule, values: Callable[[int], Values]) -> tuple[Launch, list[Values]]:
    """Runs a schedule on a machine: the launch, and every rank's values at its end."""
    turns, places = turns_of(schedule, machine.topology), places_of(schedule)
    machine.install(neighbours_of(schedule, machine.topology))
    most = machine.queues.settings.slot_bytes // schedule.itemsize
    number = {place: rank for rank, place in enumerate(places)}
    launch = machine.run_launch(
        schedule_kernel, places, lambda place: (values(number[place]).copy(), turns[place], most), schedule.algorithm
    )
    return launch, [launch.results[place] for place in places]


def multi_pe_sip_local(places: Sequence[PE], topology: Topology) -> None:
    """That PEs are one group within one SIP: whole cubes, the same PEs of each."""
    sips = sorted({place.sip for place in places})
    if len(sips) != 1:
        raise ValueError(f"the group has PEs of SIPs {sips}; allowed: of one")
    lanes: dict[int, set[int]] = {}
    for place in places:
        lanes.setdefault(topology.check(place).cube, set()).add(place.pe)
    first = next(iter(lanes.values()))
    for cube, own in lanes.items():
        if own != first:
            raise ValueError(
                f"cube {cube} of the group has PEs {sorted(own)}; allowed: {sorted(first)}, as in the others"
            )
