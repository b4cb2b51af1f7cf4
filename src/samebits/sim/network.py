"""Where ranks meet: collectives by group and place in its sequence, messages by channel, first in first out.

The last member to arrive makes a collective happen, over tensors in rank order. Members that bring different calls to
one place are all told, with both call sites. Knows no torch.distributed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from samebits.sim.calls import Algorithms, Call, execute
from samebits.sim.engine import Engine, Handle
from samebits.sim.errors import CollectiveTimeoutError, MismatchError, RaceError
from samebits.sim.host_reads import Writers
from samebits.sim.in_flight import InFlight, handed_over, race_of
from samebits.sim.journal import Entry, Journal
from samebits.sim.rank import Rank, State, call_site
from samebits.sim.results import digest_of

if TYPE_CHECKING:
    from samebits.sim.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Members:
    """A group as the network knows it: its name and its ranks, in the order of their places."""

    name: str
    ranks: tuple[int, ...]
    timeout: float
    """Simulated seconds."""

    @property
    def label(self) -> str:
        return f"group {self.name or 'default'} of ranks {','.join(map(str, self.ranks))}"


@dataclass(slots=True)
class Arrival:
    """One member's arrival at a collective, or one side of a message."""

    rank: Rank
    call: Call
    site: str
    clock: float
    handle: Handle
    watched: tuple[InFlight, ...] = ()
    """What the program must leave alone until it is complete."""

    @property
    def race(self) -> str:
        return race_of(self.rank.number, self.call.operation, self.site, self.watched)


Timing = Callable[[Members, Sequence[Call], Sequence[float]], Sequence[float]]
"""From who takes part (of a message: sender, receiver), their calls and clocks to the clocks at which each goes on."""


def no_time(members: Members, calls: Sequence[Call], clocks: Sequence[float]) -> Sequence[float]:
    """Messages take no time: all members finish when the last has come."""
    return [max(clocks)] * len(clocks)


def in_rank_order(arrivals: Sequence[Arrival]) -> Sequence[Arrival]:
    return sorted(arrivals, key=lambda each: each.rank.number)


def in_arrival_order(arrivals: Sequence[Arrival]) -> Sequence[Arrival]:
    """Planted fault: who comes first is added first."""
    return arrivals


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What a network is made of. A faulty part can stand in, to see that it is noticed."""

    algorithms: Algorithms = field(default_factory=Algorithms)
    order: Callable[[Sequence[Arrival]], Sequence[Arrival]] = in_rank_order
    timing: Timing = no_time


OURS: Final = Parts()


class Meeting:
    """One collective of one group, while its members arrive."""

    def __init__(self, members: Members, sequence: int) -> None:
        self.members, self.sequence = members, sequence
        self.arrivals: list[Arrival] = []
        self.error: MismatchError | None = None

    def missing(self) -> list[int]:
        came = {each.rank.number for each in self.arrivals}
        return [rank for rank in self.members.ranks if rank not in came]


class Network:
    """All meetings and channels of a run."""

    def __init__(self, cluster: Cluster, engine: Engine, parts: Parts = OURS) -> None:
        self.journal = Journal()
        self.writers = Writers()
        self._cluster, self._engine, self._parts = cluster, engine, parts
        self._meetings: dict[tuple[Members, int], Meeting] = {}
        self._entered: dict[tuple[Members, int], int] = {}
        self._channels: dict[tuple[Members, int, int], list[Channel]] = {}
        self._counts: dict[tuple[str, int], int] = {}

    def enter(self, members: Members, rank: Rank, call: Call) -> Handle:
        """A rank arrives at the next collective of its group. What it gets is there when the handle is complete."""
        place = (members, rank.number)
        sequence = self._entered[place] = self._entered.get(place, 0) + 1
        meeting = self._meetings.setdefault((members, sequence), Meeting(members, sequence))
        what = f"{call} of {members.label}, collective {sequence}"
        handle = Handle(what, blockers=meeting.missing)
        watched = handed_over((*call.inputs, *call.outputs))
        arrival = Arrival(rank, call, call_site(), rank.clock, handle, watched)
        meeting.arrivals.append(arrival)
        rank.scheduler.touched.add(f"{members.label}, collective {sequence}")
        self.journal.entered.append((members.label, sequence, rank.number))
        first = meeting.arrivals[0]
        if meeting.error is None and first.call.facts() != call.facts():
            meeting.error = MismatchError(
                f"collective {sequence} of {members.label}: rank {first.rank.number} calls {first.call} at"
                f" {first.site}, rank {rank.number} calls {call} at {arrival.site}{self._cluster.faults.told}"
            )
        if meeting.error is not None:
            for each in meeting.arrivals:
                each.handle.blame = meeting.error
        self.writers.note(call.outputs, handle)
        if len(meeting.arrivals) == len(members.ranks):
            del self._meetings[members, sequence]
            if meeting.error is not None:
                self._fail(meeting.arrivals, meeting.error)
                return handle
            times = [each.clock for each in in_rank_order(meeting.arrivals)]
            self._engine.at(
                max(times), lambda: self._happen(meeting), f"completion of {what}", rank.number, members.label
            )
        return handle

    def _happen(self, meeting: Meeting) -> None:
        """All have come: the data first, then the times at which members see it."""
        members, arrivals = meeting.members, in_rank_order(meeting.arrivals)
        if self._raced(arrivals):
            return
        calls = [each.call for each in arrivals]
        taken = [digest_of(call.brought(place)) for place, call in enumerate(calls)]
        try:
            execute([each.call for each in self._parts.order(meeting.arrivals)], self._parts.algorithms)
        except (RuntimeError, ValueError) as error:
            self._fail(arrivals, type(error)(str(error)))
            return
        finishes = self._parts.timing(members, calls, [each.clock for each in arrivals])
        for each, finish, brought in zip(arrivals, finishes, taken, strict=True):
            defined = calls[0].operation != "reduce" or members.ranks[calls[0].root] == each.rank.number
            given = digest_of(each.call.outputs) if defined else ""
            entry = Entry(calls[0].operation, each.site, brought, given, last=_last(arrivals))
            self.journal.entries[members.label, meeting.sequence, each.rank.number] = entry
            self.writers.written(each.call.outputs, each.handle)
            each.handle.complete(finish)
        self._limit(members, meeting, arrivals)

    def _raced(self, arrivals: Sequence[Arrival]) -> bool:
        """Whether somebody wrote to what is still under way; then everybody is told."""
        race = next((each.race for each in arrivals if each.race), "")
        if race:
            self._fail(arrivals, RaceError(f"{race}{self._cluster.faults.told}"))
        return bool(race)

    def _limit(self, members: Members, meeting: Meeting, arrivals: Sequence[Arrival]) -> None:
        """Every member is told when one of them had to wait longer than the group allows."""
        longest = max(arrivals, key=lambda each: each.handle.finish - each.clock)
        waited = longest.handle.finish - longest.clock
        if waited > members.timeout:
            last = max(arrivals, key=lambda each: each.clock)
            error = CollectiveTimeoutError(
                f"collective {meeting.sequence} of {members.label}: rank {longest.rank.number} waited {waited:g} s of"
                f" simulated time, at most {members.timeout:g}; the last to come was rank {last.rank.number} at"
                f" {last.site}{self._cluster.faults.told}"
            )
            self._fail(arrivals, error)

    def _fail(self, arrivals: Sequence[Arrival], error: Exception) -> None:
        """Everybody who has come is told; nobody writes any more."""
        for each in arrivals:
            self.writers.written(each.call.outputs, each.handle)
            each.handle.fail(error)

    def send(self, members: Members, rank: Rank, tensor: Tensor, to: int, tag: int) -> Handle:
        """A message to a member; complete when it is received. What it carries is what the tensor holds now."""
        call = Call("send", (tensor.detach().clone(),), ())
        return self._message(members, rank, call, rank.number, members.ranks[to], tag, tensor)

    def receive(self, members: Members, rank: Rank, tensor: Tensor, source: int | None, tag: int) -> Handle:
        """A message from a member, or from whoever sends first (source None)."""
        call = Call("receive", (), (tensor,))
        known = None if source is None else members.ranks[source]
        return self._message(members, rank, call, known, rank.number, tag, tensor)

    def _message(
        self, members: Members, rank: Rank, call: Call, source: int | None, to: int, tag: int, tensor: Tensor
    ) -> Handle:
        channels = self._channels.setdefault((members, to, tag), [])
        end = f"to rank {to}" if call.operation == "send" else f"from rank {'any' if source is None else source}"
        handle = Handle(
            f"{call.operation} {end} (tag {tag}) in {members.label}",
            blockers=lambda: self._others(members, source, to, rank.number),
        )
        arrival = Arrival(rank, call, call_site(), rank.clock, handle, handed_over([tensor]))
        if call.operation == "receive":
            self.writers.note(call.outputs, handle)
        channels.append(Channel(source, arrival))
        rank.scheduler.touched.add(f"messages to rank {to} (tag {tag}) in {members.label}")
        self._match(members, to, tag, channels)
        return handle

    def _others(self, members: Members, source: int | None, to: int, own: int) -> list[int]:
        known = members.ranks if source is None else (source, to)
        return [each for each in known if each != own and self._cluster.ranks[each].state is State.ALIVE]

    def _match(self, members: Members, to: int, tag: int, posted: list[Channel]) -> None:
        """The first receive, with the first message of its source."""
        for receive in [each for each in posted if each.arrival.call.operation == "receive"]:
            for send in [each for each in posted if each.arrival.call.operation == "send"]:
                if receive.source is None or receive.source == send.source:
                    posted.remove(receive)
                    posted.remove(send)
                    self._deliver(members, tag, send.arrival, receive.arrival, receive.source is None)
                    break

    def _deliver(self, members: Members, tag: int, send: Arrival, receive: Arrival, any_source: bool) -> None:
        source, to = send.rank.number, receive.rank.number
        sender = "any rank" if any_source else f"rank {source}"
        channel = f"messages from {sender} to rank {to} (tag {tag}) in {members.label}"
        number = self._counts[channel, to] = self._counts.get((channel, to), 0) + 1

        def happen() -> None:
            if self._raced([send, receive]):
                return
            carried, into = send.call.inputs[0], receive.call.outputs[0]
            if carried.numel() != into.numel() or carried.dtype != into.dtype:
                error = MismatchError(
                    f"message {number} of {channel}: rank {source} sends {send.call} at {send.site}, rank {to} receives"
                    f" {into.dtype} {list(into.shape)} at {receive.site}{self._cluster.faults.told}"
                )
                self._fail([send, receive], error)
                return
            with torch.inference_mode():
                into.data.copy_(carried.view_as(into))
            both = replace(members, ranks=(source, to))
            times = self._parts.timing(both, [send.call, receive.call], [send.clock, receive.clock])
            taken = digest_of([carried])
            entry = Entry(
                "receive", receive.site, taken, digest_of([into]), source if any_source else -1, _last([send, receive])
            )
            self.journal.entries[channel, number, to] = entry
            self.writers.written(receive.call.outputs, receive.handle)
            receive.handle.source = members.ranks.index(source)
            send.handle.complete(times[0])
            receive.handle.complete(times[1])

        when = max(send.clock, receive.clock)
        self._engine.at(when, happen, f"message {number} of {channel}", to, channel)


def _last(arrivals: Sequence[Arrival]) -> int:
    """Whoever came last, if that was one alone."""
    latest = max(each.clock for each in arrivals)
    late = [each.rank.number for each in arrivals if each.clock == latest]
    return late[0] if len(late) == 1 else -1


@dataclass(frozen=True, slots=True, eq=False)
class Channel:
    """One side of a message that waits for the other; source None: any."""

    source: int | None
    arrival: Arrival
