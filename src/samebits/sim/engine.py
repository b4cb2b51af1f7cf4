"""Simulated time: events in the order of their times, and handles that they complete. Only the main context moves it.

Knows neither ranks nor tensors. Who waits for a handle inside a rank parks that rank; who waits in the main context
advances time until the handle is complete."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from samebits.sim.errors import DeadlockError


class Handle:
    """Something that will be complete. `what` names it in reports; `blockers` are the ranks it still waits for."""

    __slots__ = ("_other", "_ready", "blame", "blockers", "done", "error", "finish", "source", "what")

    def __init__(
        self, what: str, *, ready: Callable[[], bool] | None = None, blockers: Callable[[], Sequence[int]] = tuple
    ) -> None:
        self.what, self.blockers = what, blockers
        self.done = False
        self.error: BaseException | None = None
        self.blame: BaseException | None = None
        """Why it can never be complete, where that is known; told where nothing else is left to happen."""
        self.finish = 0.0
        """When it was complete, in simulated seconds."""
        self.source = -1
        """Who sent what it received; -1 where it is no message."""
        self._ready = ready
        self._other: Handle | None = None

    def becomes(self, other: Handle) -> None:
        """From now on this handle is complete when the other is, and as the other is."""
        self._other = other

    def ready(self) -> bool:
        """Whether it is complete: it was completed, or what it asks for holds by now."""
        if not self.done and self._ready is not None and self._ready():
            self.done = True
        if not self.done and self._other is not None and self._other.ready():
            self.done, self.error, self.finish = True, self._other.error, self._other.finish
        return self.done

    def complete(self, finish: float = 0.0) -> None:
        self.done, self.finish = True, finish

    def fail(self, error: BaseException) -> None:
        """Complete, with an error for whoever waits."""
        self.done, self.error = True, error


@dataclass(order=True, slots=True)
class Event:
    """Something that happens at a simulated time. Events of one time happen in the order in which they were made."""

    time: float
    number: int
    label: str = field(compare=False)
    actor: int = field(compare=False)
    """The rank whose doing it is; -1: nobody's."""
    action: Callable[[], None] = field(compare=False, repr=False)
    channel: str = field(default="", compare=False)
    """Events of one channel happen in the order in which they were made, whatever is chosen; empty: of none."""


class Engine:
    """The clock of one run."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[Event] = []
        self._count = 0
        self._advancing = False
        self._thread = threading.get_ident()

    def at(self, time: float, action: Callable[[], None], label: str = "", actor: int = -1, channel: str = "") -> Event:
        """Something that shall happen at a time; if an event makes it, not before that one."""
        event = Event(max(time, self.now if self._advancing else time), self._count, label, actor, action, channel)
        self._count += 1
        self._events.append(event)
        self._events.sort()
        return event

    @property
    def pending(self) -> tuple[Event, ...]:
        """What is still to happen, soonest first."""
        return tuple(self._events)

    @property
    def next(self) -> list[Event]:
        """What could happen next: of each channel its first."""
        firsts: dict[str, int] = {}
        for event in self._events:
            if event.channel:
                firsts[event.channel] = min(event.number, firsts.get(event.channel, event.number))
        return [event for event in self._events if not event.channel or event.number == firsts[event.channel]]

    def step(self, chosen: Event | None = None) -> Event:
        """One event happens: the soonest, or another of `next`."""
        if threading.get_ident() != self._thread:
            raise RuntimeError("only the main context advances simulated time; a rank waits for a handle instead")
        if self._advancing:
            raise RuntimeError("simulated time is being advanced already: an event may not advance it")
        event = chosen if chosen is not None else self._events[0]
        self._events.remove(event)
        self._advancing = True
        try:
            self.now = max(self.now, event.time)
            event.action()
        finally:
            self._advancing = False
        return event

    def drain(self) -> None:
        """Until nothing is pending; what is queued meanwhile is drained too."""
        while self._events:
            self.step()

    def run_until(self, handle: Handle) -> None:
        """The main context's wait: time moves until the handle is complete, and no further."""
        while not handle.ready():
            if not self._events:
                raise DeadlockError(f"nothing is pending that could complete {handle.what}")
            self.step()
        if handle.error is not None:
            raise handle.error

    def clear(self) -> None:
        self._events.clear()
