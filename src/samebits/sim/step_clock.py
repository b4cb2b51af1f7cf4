"""The clock of a training step: ranks as an array of copies x places, two streams each, and what a timeline shows.

A step is a list of actions. Ranks that do the same are one row: where all copies are alike one copy stands for all, and
`clocks` of every rank give the same (a test holds the two against each other). Knows no model."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from samebits.sim.timing import FloatArray, paced

# Kernels; messages that kernels wait for; collectives beside the kernels.
COMPUTE, MESSAGES, NETWORK = "kernels", "messages", "beside"


@dataclass(frozen=True, slots=True)
class Event:
    """Something on a rank's timeline."""

    place: int
    """Within its copy."""
    stream: str
    name: str
    start: float
    stop: float


@dataclass(slots=True)
class Clock:
    """All ranks' streams: when each is free."""

    compute: FloatArray
    """(copies, places)."""
    network: FloatArray
    events: list[Event] = field(default_factory=list)
    recording: bool = True
    waited: float = 0.0
    """Seconds for which the first rank's kernels waited for messages."""

    @classmethod
    def of(cls, copies: int, places: int) -> Clock:
        return cls(np.zeros((copies, places)), np.zeros((copies, places)))

    def work(self, name: str, seconds: float | FloatArray) -> None:
        """Kernels on every rank."""
        start = self.compute.copy()
        self.compute = self.compute + seconds
        self._record(COMPUTE, name, start, self.compute)

    def together(self, name: str, axis: int, seconds: float) -> None:
        """A collective that kernels wait for: it begins when the last of its group is there."""
        begin = self.compute.max(axis=axis, keepdims=True) + np.zeros_like(self.compute)
        self._wait_until(begin + seconds)
        self._record(MESSAGES, name, begin, self.compute)

    def behind(self, name: str, axis: int, seconds: float) -> FloatArray:
        """A collective beside the kernels, behind those before it: when it ends."""
        begin = np.maximum(self.compute, self.network).max(axis=axis, keepdims=True) + np.zeros_like(self.compute)
        self.network = begin + seconds
        self._record(NETWORK, name, begin, self.network)
        return self.network

    def wait(self, until: FloatArray | None = None) -> None:
        """Kernels wait for a collective, or for all of them."""
        self._wait_until(self.network if until is None else until)

    def chain(self, name: str, tiles: int, tile: float, there: tuple[float, float], back: tuple[float, float]) -> None:
        """A sum that travels from place to place, tile by tile, and back when it is finished.

        `tile`: seconds of one tile's product on a rank; `there` and `back`: latency of a message, and for how long it
        holds its link."""
        places, start = self.compute.shape[1], self.compute.copy()
        arrives = np.repeat(start[:, :1], tiles, axis=1)
        for place in range(places):
            done = paced(np.maximum(arrives, start[:, place, None]), tile)
            if self.recording:
                first, last = float(done[0, 0]) - tile, float(done[0, -1])
                self.events.append(Event(place, COMPUTE, name.removeprefix("chain "), first, last))
            arrives = paced(done, there[1]) + there[0]
        ends, returning = [done[:, -1]], done
        for _ in range(places - 1):
            returning = paced(returning, back[1]) + back[0]
            ends.append(returning[:, -1])
        self.waited += float((ends[-1] - start[:, 0])[0]) - tiles * tile
        self.compute = np.stack(ends[::-1], axis=1)
        self._record(MESSAGES, name, start, self.compute)

    def _wait_until(self, until: FloatArray) -> None:
        self.waited += float(max(until[0, 0] - self.compute[0, 0], 0.0))
        self.compute = np.maximum(self.compute, until)

    def _record(self, stream: str, name: str, start: FloatArray, stop: FloatArray) -> None:
        if self.recording:
            self.events += [
                Event(place, stream, name, float(start[0, place]), float(stop[0, place]))
                for place in range(start.shape[1])
                if stop[0, place] > start[0, place]
            ]

    @property
    def finish(self) -> float:
        return float(max(self.compute.max(), self.network.max()))
