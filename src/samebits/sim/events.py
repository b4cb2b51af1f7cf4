"""The discrete-event engine of PE programs: a clock and a heap of events. Simulated seconds; wall time never enters.

Events of one instant run in the order in which they were posted; with a seed, in an order drawn from it. Knows neither
PEs nor messages."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Final

Event = Callable[[], None]
# Beyond this many events a program does not end; arrays time what is larger.
MOST_EVENTS: Final = 20_000_000


class Engine:
    """Advances simulated time, one event after the other."""

    def __init__(self, seed: int | None = None) -> None:
        self.now = 0.0
        self.events = 0
        self.after_event: list[Callable[[], None]] = []
        """Called after every event: checks that must hold throughout."""
        self._heap: list[tuple[float, float, int, Event]] = []
        self._posted = 0
        self._running = False
        self._ties = None if seed is None else random.Random(f"ties {seed}")

    def at(self, time: float, event: Event) -> None:
        """Posts an event; the past cannot be changed."""
        if not time >= self.now:
            raise ValueError(f"engine: an event at {time} s, and it is {self.now} s; allowed: not before now")
        self._posted += 1
        tie = 0.0 if self._ties is None else self._ties.random()
        heapq.heappush(self._heap, (time, tie, self._posted, event))

    def clear(self) -> None:
        """Nothing that is pending happens any more."""
        self._heap.clear()

    @property
    def idle(self) -> bool:
        return not self._heap

    def run(self) -> None:
        """Until nothing is pending; what is posted meanwhile is run too."""
        if self._running:
            raise RuntimeError("engine: time is being advanced already; allowed: by one caller at a time")
        self._running = True
        try:
            while self._heap:
                self.now, _, _, event = heapq.heappop(self._heap)
                self.events += 1
                if self.events > MOST_EVENTS:
                    raise RuntimeError(
                        f"engine: more than {MOST_EVENTS:,} events; use array timing for programs so large"
                    )
                event()
                for check in self.after_event:
                    check()
        finally:
            self._running = False
