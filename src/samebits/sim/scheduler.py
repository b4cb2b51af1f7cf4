"""The scheduler: hands the baton to one rank at a time, lets time move when it is nobody's turn, and ends what fails.

It runs in the main context. When a rank fails, ranks whose wait is over run on to their next one, so that failures of
one round are all heard; then every rank gets SystemExit. When nobody can run and nothing is pending, that is a
deadlock, and every waiting rank is told who waits for whom."""

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
from samebits.sim.engine import Engine
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

    def __init__(self, bodies: Sequence[Callable[[], Any]], environments: Sequence[dict[str, str]], *,
                 enter: Callable[[ExitStack, Rank], None], streams: Streams, policy: Policy | None = None,
                 faults: Faults | None = None, limits: Limits | None = None) -> None:  # fmt: skip
        self.engine = Engine()
        self.policy: Policy = policy or Fifo()
        self.faults = faults or Faults()
        self.limits = limits or Limits()
        self.trace = Trace()
        self.touched: set[str] = set()
        """What has been used since the last choice."""
        self.ending = False
        self.enter = enter
        self._streams = streams
        self._main = threading.Lock()
        self._main.acquire()
        self.ranks = [Rank(number, self, body, environment)
                      for number, (body, environment) in enumerate(zip(bodies, environments, strict=True))]  # fmt: skip

    def hand_back(self) -> None:
        """A rank's side of a hand-off: the main context goes on."""
        self._main.release()

    @property
    def alive(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.state is State.ALIVE]

    def run(self, until: float = float("inf")) -> bool:
        """Until every rank has ended, or to a moment of the wall clock. Whether all have ended."""
        while self.alive:
            if time.monotonic() > until:
                return False
            self._turn()
            if self.ending:
                self._end_all()
        return True

    def _turn(self) -> None:
        """One choice: a rank runs to its next wait, or an event happens."""
        working: list[Rank] = []
        polling: list[Rank] = []
        for rank in self.ranks:
            if rank.ready():
                (polling if rank.polls else working).append(rank)
        events = self.engine.pending
        ranks_first = [_runs(rank) for rank in working]
        alternatives = [*ranks_first, *(Alternative(event.actor, event.label) for event in events),
                        *map(_runs, polling)]  # fmt: skip
        if not alternatives:
            self._deadlock()
            return
        place = self._choose(alternatives)
        number = len(self.trace.made) - 1 if len(alternatives) > 1 else -1
        if len(working) <= place < len(working) + len(events):
            self.engine.step(place - len(working))
        else:
            self.resume((working + polling)[place if place < len(working) else place - len(events)])
        self.trace.steps.append(Step(alternatives[place].actor, frozenset(self.touched), number))
        self.touched.clear()
        if polling and not working and not events:
            self._give_up_polling(polling)

    def _choose(self, alternatives: list[Alternative]) -> int:
        if len(alternatives) == 1:
            return 0
        place = self.policy.choose(alternatives)
        self.trace.made.append(Choice(len(self.trace.made), place, tuple(alternatives)))
        return place

    def resume(self, rank: Rank) -> None:
        """The baton goes to a rank and comes back."""
        self._streams.hand_to(rank.number)
        self.trace.hand_offs += 1
        rank.go()
        if not self._main.acquire(timeout=self.limits.watchdog):
            self._interrupt(rank)
        if rank.state is State.FAILED:
            self.ending = True

    def _interrupt(self, rank: Rank) -> None:
        """A rank that runs on and on gets an exception wherever it is; if that does not help it is left behind."""
        frame = sys._current_frames().get(rank.thread.ident or 0)
        at = call_site(frame) if frame is not None else "an unknown place"
        message = f"rank {rank.number} ran {self.limits.watchdog:g} s without an event or a wait, at {at}"
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(rank.thread.ident or 0),
                                                   ctypes.py_object(NonProgressError))  # fmt: skip
        came = self._main.acquire(timeout=self.limits.grace)
        rank.state = State.FAILED if came else State.ABANDONED
        rank.error, rank.told = NonProgressError(message), rank.told or message
        self.ending = True

    def _give_up_polling(self, polling: list[Rank]) -> None:
        for rank in polling:
            if rank.polls > self.limits.polls and rank.handle is not None:
                what = rank.handle.what
                rank.handle.fail(NonProgressError(
                    f"rank {rank.number} asked {rank.polls} times in a row whether {what} at {rank.site}; no other rank"
                    f" can run and nothing is pending"))  # fmt: skip

    def _deadlock(self) -> None:
        """Every waiting rank is told, with the whole graph: each of them is a root cause."""
        graph = "; ".join(_waits(rank) for rank in self.alive)
        gone = [rank.number for rank in self.ranks if rank.state is State.ENDED]
        ended = f"; ended before: {_names(gone)}" if gone else ""
        for rank in self.alive:
            assert rank.handle is not None
            rank.handle.fail(DeadlockError(f"every rank waits: {graph}{ended}{self.faults.told}"))

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


def _runs(rank: Rank) -> Alternative:
    if rank.handle is None:
        return Alternative(rank.number, f"the start of rank {rank.number}")
    return Alternative(rank.number, rank.handle.what, rank.site)


def _names(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) != 1 else ''} {', '.join(map(str, ranks))}"


def _waits(rank: Rank) -> str:
    assert rank.handle is not None
    blockers = sorted(set(rank.handle.blockers()) - {rank.number})
    on = f" for {_names(blockers)}" if blockers else ""
    return f"rank {rank.number} waits{on} in {rank.handle.what} at {rank.site}"
