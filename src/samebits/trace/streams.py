"""C-STREAMSYNC-001: nothing is read before what writes it has ended. A rule over a list of what was done in order.

Each stream does its work in order, and two streams know of each other only by events and by a host that waits. The rule
needs no GPU: a list may be recorded (`stream_recording`) or planned. Knows no kernel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from samebits.trace.findings import Finding

CONTRACT: Final = "C-STREAMSYNC-001"


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """Work on a stream, with the addresses of the memory that it reads and writes."""

    stream: int
    kernel: str
    reads: frozenset[int]
    writes: frozenset[int]
    where: str
    """file:line of the caller."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostRead:
    """The host takes numbers through a stream, whose own work ends before; that of other streams may go on."""

    stream: int
    memory: int
    where: str


@dataclass(frozen=True, kw_only=True, slots=True)
class HostWait:
    """The host waits until a stream has done all that it was given; None: until every stream has."""

    stream: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class EventRecorded:
    """An event stands for all work of a stream until now."""

    event: int
    stream: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EventAwaited:
    """A stream (None: the host) goes on only after an event."""

    event: int
    stream: int | None


Done = Launch | HostRead | HostWait | EventRecorded | EventAwaited
Clock = dict[int, int]
"""By stream, how much of its work has surely ended."""


def races(log: Iterable[Done]) -> list[Finding]:
    """What reads memory that a stream nobody waited for was writing; one finding a place."""
    return _Order().judged(log)


class _Order:
    """What each stream and the host know to have ended, as the list goes on."""

    def __init__(self) -> None:
        self._host: Clock = defaultdict(int)
        self._streams: dict[int, Clock] = defaultdict(lambda: defaultdict(int))
        self._events: dict[int, Clock] = {}
        self._written: dict[int, tuple[int, int, str]] = {}
        """Of each memory: stream, number and kernel of its last write."""
        self._found: dict[tuple[str, str], Finding] = {}

    def judged(self, log: Iterable[Done]) -> list[Finding]:
        for done in log:
            match done:
                case Launch():
                    self._launch(done)
                case HostRead():
                    self._check(done.memory, [self._host, self._streams[done.stream]], done.where, "the host")
                case HostWait():
                    waited = self._streams.values() if done.stream is None else [self._streams[done.stream]]
                    for clock in list(waited):
                        _learn(self._host, clock)
                case EventRecorded():
                    self._events[done.event] = dict(self._streams[done.stream])
                case EventAwaited():
                    known = self._host if done.stream is None else self._streams[done.stream]
                    _learn(known, self._events.get(done.event, {}))
        return list(self._found.values())

    def _launch(self, done: Launch) -> None:
        clock = self._streams[done.stream]
        # What the host waited for has ended before it gives a stream new work.
        _learn(clock, self._host)
        for memory in done.reads | done.writes:
            self._check(memory, [clock], done.where, f"kernel {done.kernel} on stream {done.stream}")
        clock[done.stream] += 1
        for memory in done.writes:
            self._written[memory] = done.stream, clock[done.stream], done.kernel

    def _check(self, memory: int, known: list[Clock], where: str, reader: str) -> None:
        if memory not in self._written:
            return
        stream, number, kernel = self._written[memory]
        if max(clock.get(stream, 0) for clock in known) >= number:
            return
        words = f"{reader} reads what kernel {kernel} writes on stream {stream}, for which nobody waited"
        finding = Finding(
            granularity="transfer",
            place=where,
            contract=CONTRACT,
            message=f"{words}; allowed: after a synchronize of that stream or an event of it",
        )
        self._found.setdefault((where, kernel), finding)


def _learn(clock: Clock, other: Clock) -> None:
    for stream, number in other.items():
        clock[stream] = max(clock.get(stream, 0), number)
