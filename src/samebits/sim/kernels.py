"""Kernels as coroutines: what a PE program may ask for, and where one that waits is.

A kernel is a generator. It yields requests and gets their results: `data = yield pe.receive("W")`. Only the machine
resumes it; it never enters the engine itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from samebits.sim.queue_pairs import Payload
from samebits.sim.topology import PE


@dataclass(frozen=True, slots=True)
class Compute:
    """Busy for so many seconds."""

    seconds: float
    what: str = "compute"


@dataclass(frozen=True, slots=True)
class Send:
    """Into the queue of a direction; waits for a credit, not for the arrival."""

    direction: str
    payload: Payload


@dataclass(frozen=True, slots=True)
class Receive:
    """The next message of a direction."""

    direction: str


Request = Compute | Send | Receive
Kernel = Callable[..., Generator[Request, Any, Any]]


@dataclass(frozen=True, slots=True)
class Context:
    """What a kernel is handed first: its place, and requests to yield."""

    place: PE

    def compute(self, seconds: float, what: str = "compute") -> Compute:
        if not 0 <= seconds < math.inf:
            raise ValueError(f"{self.place}: {what} takes {seconds} s; allowed: finite, at least 0")
        return Compute(seconds, what)

    def send(self, direction: str, payload: npt.ArrayLike) -> Send:
        """The payload is captured here: what the kernel does to its buffer afterwards is not sent."""
        return Send(direction, _captured(payload, f"{self.place} {direction}"))

    def receive(self, direction: str) -> Receive:
        return Receive(direction)


def _captured(payload: npt.ArrayLike, where: str) -> Payload:
    """A copy as float32, for queues hold nothing else; ValueError for numbers that would become others on the way."""
    given = np.asarray(payload)
    if given.dtype.kind not in "fiub":
        raise ValueError(f"{where}: a message of {given.dtype}; allowed: float32, or numbers that it holds exactly")
    with np.errstate(over="ignore", invalid="ignore"):
        captured: Payload = given.astype(np.float32)
        # Wide enough for whole numbers of 64 bits, too.
        kept = (captured.astype(np.longdouble) == given.astype(np.longdouble)) | np.isnan(captured)
    if not kept.all():
        value = given.reshape(-1)[np.flatnonzero(~np.atleast_1d(kept))[0]]
        raise ValueError(
            f"{where}: a message of {given.dtype} has {value}, which float32 does not hold; allowed: float32, or"
            " numbers that it holds exactly"
        )
    return captured


@dataclass(slots=True, eq=False)
class Program:
    """One kernel on one PE."""

    place: PE
    generator: Generator[Request, Any, Any]
    launch: Launch
    waits_for: str = ""
    """The slot or credit awaited; empty while it runs."""

    def call_site(self) -> str:
        """File and line of the kernel at which it stands."""
        inner: Any = self.generator
        while getattr(inner, "gi_yieldfrom", None) is not None and hasattr(inner.gi_yieldfrom, "gi_frame"):
            inner = inner.gi_yieldfrom
        frame = inner.gi_frame
        return f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}" if frame else "ended"


@dataclass(slots=True, eq=False)
class Launch:
    """A kernel started on several PEs: a handle that is done when all have ended."""

    name: str
    places: list[PE]
    started: dict[PE, float] = field(default_factory=dict)
    finished: dict[PE, float] = field(default_factory=dict)
    results: dict[PE, Any] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return len(self.finished) == len(self.places)

    @property
    def finish(self) -> float:
        """When the last PE ended."""
        return max(self.finished.values())


@dataclass(frozen=True, slots=True)
class Waiting:
    """One line of the wait-for graph."""

    place: PE
    waits_for: str
    call_site: str

    def __str__(self) -> str:
        return f"rank {self.place.sip}, {self.place}: {self.waits_for} at {self.call_site}"


class IpcqDeadlock(RuntimeError):  # noqa: N818
    """Programs wait, and nothing is pending that could wake one of them."""

    def __init__(self, waiting: list[Waiting], noticed: str) -> None:
        self.waiting = waiting
        lines = "; ".join(map(str, waiting[:8]))
        more = f" and {len(waiting) - 8} more" if len(waiting) > 8 else ""
        super().__init__(f"deadlock: {len(waiting)} programs wait and nothing is pending: {lines}{more}{noticed}")
