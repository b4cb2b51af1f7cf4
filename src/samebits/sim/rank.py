"""One rank: an OS thread that runs only while it holds the baton, and everything that a process would own.

A rank is one SIP. It gives the baton back at a wait and gets it when the wait is over; nothing else switches ranks.
Threads, not greenlets: torch keeps grad mode, autograd's state and call frames by OS thread."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from enum import Enum
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from samebits.sim.engine import Handle

if TYPE_CHECKING:
    from samebits.sim.cluster import Cluster
    from samebits.sim.scheduler import Scheduler

# A rank that is asked to end may swallow this many SystemExits.
PATIENCE: Final = 2
_OWN: Final = ("/torch/", "/samebits/sim/", "/threading.py", "/contextlib.py", "/runpy.py")
_skipped: dict[str, bool] = {}
_registry = threading.local()


class State(Enum):
    """What a rank is doing."""

    ALIVE = "alive"
    ENDED = "ended"
    FAILED = "failed"
    STOPPED = "stopped"
    """Ended by SystemExit because another rank failed."""
    ABANDONED = "abandoned"


def current() -> Rank | None:
    """The rank whose code is running on this thread; None in the main context."""
    return getattr(_registry, "rank", None)


def call_site(frame: FrameType | None = None) -> str:
    """The innermost line of the program itself that led here, as file:line."""
    frame = frame or sys._getframe(1)
    fallback = frame
    while frame is not None:
        name = frame.f_code.co_filename
        if name not in _skipped:
            _skipped[name] = any(part in name for part in _OWN)
        if not _skipped[name]:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return f"{fallback.f_code.co_filename}:{fallback.f_lineno}"


class Rank:
    """One rank of a run."""

    def __init__(self, number: int, scheduler: Scheduler, body: Callable[[], Any], environment: dict[str, str]) -> None:
        self.number, self.scheduler = number, scheduler
        self.cluster: Cluster
        self.environment: dict[str, str | None] = {**environment}
        """What this rank sees of os.environ otherwise than the process does; None: nothing at all."""
        self.world: Any = None
        """Its own state of torch.distributed."""
        self.device = 0
        """The SIP on which its new tensors land."""
        self.clock = 0.0
        self.owed = 0.0
        """When the last collective ends that was taken as a future: torch waits for those where nobody sees it."""
        self.slowness = 1.0
        self.waits = 0
        self.handle: Handle | None = None
        self.site = ""
        self.state = State.ALIVE
        self.polls = 0
        """How often it has asked in a row whether something is complete, without waiting for it."""
        self.must_end = False
        self.asked_to_end = 0
        self.result: Any = None
        self.error: BaseException | None = None
        self.told = ""
        self._body = body
        # Held by nobody but the side that waits; a bare lock changes hands faster than a semaphore.
        self._baton = threading.Lock()
        self._baton.acquire()
        self.thread = threading.Thread(target=self._run, name=f"rank {number}", daemon=True)
        self.started = False
        self._leaving = False
        """Whether its thread has only to return."""

    def __repr__(self) -> str:
        return f"rank {self.number}"

    def ready(self) -> bool:
        """Whether it could run on."""
        return self.state is State.ALIVE and (self.handle is None or self.handle.ready())

    def go(self) -> None:
        """The main context's side of a hand-off."""
        if not self.started:
            self.started = True
            self.thread.start()
        self._baton.release()

    def wait(self, handle: Handle) -> None:
        """Gives the baton away until the handle is complete; not at all where it is."""
        self.waits += 1
        self.polls = 0
        if not (handle.ready() and handle.error is not None):
            self.scheduler.faults.at_wait(self)
            self._end_if_asked()
        if not handle.ready():
            self._park(handle)
        if handle.error is not None:
            raise handle.error

    def pause(self, what: str, *, polls: bool = False) -> None:
        """Gives the baton away and may have it back at once: a place where another rank could be faster.

        A rank that polls comes last, so that what it polls for can happen."""
        if polls:
            self._end_if_asked()
        elif self.scheduler.ending:
            # No wait: a rank that may run on in the round of a failure comes to its next one.
            return
        self.polls = self.polls + 1 if polls else 0
        handle = Handle(what, ready=lambda: True)
        self._park(handle)
        if handle.error is not None:
            raise handle.error

    def _park(self, handle: Handle) -> None:
        self.site = call_site(sys._getframe(2))
        self.handle = handle
        if self.scheduler.hand_on(self):
            self._baton.acquire()
        self.handle = None
        if self.must_end:
            self._end_if_asked()

    def _end_if_asked(self) -> None:
        """SystemExit where another rank has failed. Who swallows two of them is left where it is, and never runs on."""
        if not self.scheduler.ending:
            return
        self.must_end, self.asked_to_end = False, self.asked_to_end + 1
        if self.asked_to_end > PATIENCE or self.state is State.ABANDONED:
            self.state = State.ABANDONED
            self.scheduler.hand_back()
            threading.Event().wait()
        raise SystemExit(f"rank {self.number} is ended because another rank failed")

    def elapse(self, seconds: float) -> None:
        """Its own work takes this long in simulated time; longer on a rank that a fault plan slows down."""
        self.clock += seconds * self.slowness

    def _run(self) -> None:
        self._baton.acquire()
        _registry.rank = self
        try:
            with ExitStack() as scope:
                self.scheduler.enter(scope, self)
                self.result = self._body()
            self.state = State.ENDED
        except BaseException as error:
            self._end_with(error)
        self.clock = max(self.clock, self.owed)
        if self.state is not State.ABANDONED:
            self._leaving = True
            self.scheduler.hand_back()

    def join(self) -> None:
        """A rank that has ended leaves no thread behind; one that was abandoned does, and is not waited for."""
        if self._leaving:
            self.thread.join()

    def _end_with(self, error: BaseException) -> None:
        if self.asked_to_end:
            self.state = State.STOPPED
        elif isinstance(error, SystemExit) and error.code in (None, 0):
            self.state = State.ENDED
        else:
            self.state, self.error = State.FAILED, error
            self.told = "".join(traceback.format_exception(error))
