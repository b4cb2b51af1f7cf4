"""The scheduler: one rank at a time has the baton, time moves when it is nobody's turn, and what fails is ended.

A rank that parks hands the baton on to the next one; events happen in the main context alone. When a rank fails, ranks
whose wait is over run on to their next one, so that failures of one round are all heard; then every rank gets
SystemExit. When nobody can run and nothing is pending, that is a deadlock, and every waiting rank is told who waits
for whom."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from samebits.sim.choices import Alternative, Choice, Fifo, Policy, Step, Trace
from samebits.sim.engine import Engine, Event
from samebits.sim.errors import DeadlockError, NonProgressError
from samebits.sim.faults import Faults
from samebits.sim.random_state import Streams
from samebits.sim.rank import Rank, State, call_site

# A rank that neither ends nor waits for this many wall-clock seconds keeps all others from running.
WATCHDOG_SECONDS: Final = 300.0
# Every ready rank polled this often, and nothing happened.
MOST_POLLS: Final = 2000
# From being told to end to being left behind.
GRACE_SECONDS: Final = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """When a run that does not get on is given up. Wall clock; simulated time has the groups' own timeouts."""

    watchdog: float = WATCHDOG_SECONDS
    polls: int = MOST_POLLS
    grace: float = GRACE_SECONDS


class Scheduler:
    """One run's ranks and whose turn it is."""

    def __init__(
        self,
        bodies: Sequence[Callable[[], Any]],
        environments: Sequence[dict[str, str]],
        *,
        enter: Callable[[ExitStack, Rank], None],
        streams: Streams,
        policy: Policy | None = None,
        faults: Faults | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.engine = Engine()
        self.policy: Policy = policy or Fifo()
        self.faults = faults or Faults()
        self.limits = limits or Limits()
        self.trace = Trace()
        self.touched: set[str] = set()
        """What has been used since the last choice."""
        self.ending = False
        self.enter = enter
        self._until = float("inf")
        self._chosen: Rank | Event | None = None
        """What a rank chose that only the main context can do."""
        self._step = (-1, -1)
        """Who was chosen last, and by which choice."""
        self._streams = streams
        self._main = threading.Lock()
        self._main.acquire()
        self.ranks = [
            Rank(number, self, body, environment)
            for number, (body, environment) in enumerate(zip(bodies, environments, strict=True))
        ]
        self._running = self.ranks[0]

    def hand_back(self) -> None:
        """A rank that ends, or cannot say who is next: the main context goes on."""
        self._main.release()

    def hand_on(self, rank: Rank) -> bool:
        """A rank that has parked makes the next choice itself: False where it may go on at once.

        Ranks are handed the baton directly; everything else, time above all, is the main context's."""
        if self.ending or self._until < float("inf"):
            self._main.release()
            return True
        chosen = self._choose_next()
        if chosen is rank:
            return False
        if isinstance(chosen, Rank):
            self._give(chosen)
        else:
            self._chosen = chosen
            self._main.release()
        return True

    @property
    def alive(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.state is State.ALIVE]

    def run(self, until: float = float("inf")) -> bool:
        """Until every rank has ended, or to a moment of the wall clock. Whether all have ended."""
        self._until = until
        while self.alive:
            if time.monotonic() > until:
                return False
            chosen, self._chosen = self._chosen or self._choose_next(), None
            if chosen is None:
                self._deadlock()
            elif isinstance(chosen, Rank):
                self.resume(chosen)
            else:
                self.engine.step(chosen)
            if self.ending:
                self._end_all()
        return True

    def _choose_next(self) -> Rank | Event | None:
        """Who or what is next; None where nothing can be."""
        self._close_step()
        working: list[Rank] = []
        polling: list[Rank] = []
        for rank in self.ranks:
            if rank.ready():
                (polling if rank.polls else working).append(rank)
        events = self.engine.next
        things: list[Rank | Event] = [*working, *events, *polling]
        if not things:
            return None
        if not working and not events:
            self._give_up_polling(polling)
        place, number = 0, -1
        if len(things) > 1:
            alternatives = tuple(_alternative(each) for each in things)
            place, number = self.policy.choose(alternatives), len(self.trace.made)
            self.trace.made.append(Choice(number, place, alternatives))
        chosen = things[place]
        self._step = (chosen.number if isinstance(chosen, Rank) else chosen.actor, number)
        return chosen

    def _close_step(self) -> None:
        """What was touched since the last choice belongs to whoever it chose."""
        self.trace.steps.append(Step(self._step[0], frozenset(self.touched), self._step[1]))
        self.touched.clear()

    def _give(self, rank: Rank) -> None:
        self._streams.hand_to(rank.number)
        self.trace.hand_offs += 1
        self._running = rank
        rank.go()

    def resume(self, rank: Rank) -> None:
        """The baton goes to a rank; it comes back when ranks cannot hand it on among themselves."""
        self._give(rank)
        seen = -1
        while not self._main.acquire(timeout=self.limits.watchdog):
            if seen == self.trace.hand_offs:
                self._interrupt(self._running)
                break
            seen = self.trace.hand_offs
        if self._running.state is State.FAILED:
            self.ending = True

    def _interrupt(self, rank: Rank) -> None:
        """A rank that runs on and on gets an exception wherever it is; if that does not help it is left behind."""
        frame = sys._current_frames().get(rank.thread.ident or 0)
        at = call_site(frame) if frame is not None else "an unknown place"
        message = f"rank {rank.number} ran {self.limits.watchdog:g} s without an event or a wait, at {at}"
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(rank.thread.ident or 0), ctypes.py_object(NonProgressError)
        )
        came = self._main.acquire(timeout=self.limits.grace)
        rank.state = State.FAILED if came else State.ABANDONED
        rank.error, rank.told = NonProgressError(message), rank.told or message
        self.ending = True

    def _give_up_polling(self, polling: list[Rank]) -> None:
        for rank in polling:
            if rank.polls > self.limits.polls and rank.handle is not None:
                what = rank.handle.what
                rank.handle.fail(
                    NonProgressError(
                        f"rank {rank.number} asked {rank.polls} times in a row whether {what} at {rank.site};"
                        " no other rank"
                        f" can run and nothing is pending"
                    )
                )

    def _deadlock(self) -> None:
        """Every waiting rank is told, with the whole graph: each of them is a root cause."""
        graph = "; ".join(_waits(rank) for rank in self.alive)
        gone = [rank.number for rank in self.ranks if rank.state is State.ENDED]
        ended = f"; ended before: {names_of(gone)}" if gone else ""
        for rank in self.alive:
            assert rank.handle is not None
            known = rank.handle.blame
            rank.handle.fail(known or DeadlockError(f"every rank waits: {graph}{ended}{self.faults.told}"))

    def _end_all(self) -> None:
        """First whoever could have run on in this round, to its next wait; then the rest, where they wait."""
        for rank in self.ranks:
            if rank.ready() and rank.started:
                self.resume(rank)
        for rank in self.ranks:
            while rank.state is State.ALIVE:
                if not rank.started:
                    rank.state = State.STOPPED
                    break
                rank.must_end = True
                self.resume(rank)
        self.engine.clear()


def _alternative(thing: Rank | Event) -> Alternative:
    if isinstance(thing, Event):
        return Alternative(thing.actor, thing.label)
    if thing.handle is None:
        return Alternative(thing.number, f"the start of rank {thing.number}")
    return Alternative(thing.number, thing.handle.what, thing.site)


def names_of(ranks: Sequence[int]) -> str:
    """Ranks by number, for a sentence."""
    return f"rank{'s' if len(ranks) != 1 else ''} {', '.join(map(str, ranks))}"


def _waits(rank: Rank) -> str:
    assert rank.handle is not None
    blockers = sorted(set(rank.handle.blockers()) - {rank.number})
    on = f" for {names_of(blockers)}" if blockers else ""
    return f"rank {rank.number} waits{on} in {rank.handle.what} at {rank.site}"
