"""One place to wait for many things: lines on pipes, the end of processes, signals.

One thread, so that nothing arrives twice and nobody is asked after their end. Knows nothing of ranks."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What ended processes had written lies in the pipes; a pipe that somebody unknown still holds is left alone after this.
DRAIN_SECONDS: Final = 1.0


class Watch:
    """While it is entered, SIGINT, SIGTERM and SIGHUP are noted instead of obeyed; one that was ignored still is."""

    def __init__(self) -> None:
        self.signal = 0
        """The first that came."""
        self._selector = selectors.DefaultSelector()
        self._pipes = 0
        self._before: dict[int, Any] = {}
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    def __enter__(self) -> Watch:
        self._selector.register(self._woken, selectors.EVENT_READ, lambda: os.read(self._woken, 64))
        self._before_wake = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        heard = [each for each in SIGNALS if signal.getsignal(each) != signal.SIG_IGN]
        self._before = {each: signal.signal(each, self._note) for each in heard}
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)
        signal.set_wakeup_fd(self._before_wake)
        self._selector.close()
        os.close(self._woken)
        os.close(self._wake)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.signal = self.signal or number

    def pipe(self, end: int, take: Callable[[bytes], None]) -> None:
        """What comes out of a pipe goes to `take`; nothing at all, b"", is its end."""

        def ready() -> None:
            try:
                found = os.read(end, 1 << 16)
            except OSError:
                # A terminal's end says so when its last writer has gone.
                found = b""
            take(found)
            if not found:
                self._selector.unregister(end)
                os.close(end)
                self._pipes -= 1

        self._selector.register(end, selectors.EVENT_READ, ready)
        self._pipes += 1

    def ending(self, process: int, call: Callable[[], None]) -> None:
        """Calls once the process, a child of this one, has ended; it has not been waited for then."""
        handle = os.pidfd_open(process)

        def ready() -> None:
            self._selector.unregister(handle)
            os.close(handle)
            call()

        self._selector.register(handle, selectors.EVENT_READ, ready)

    def wait(self, seconds: float) -> None:
        """Until something happened, at most some seconds; what happened has been told when this returns."""
        limit = None if seconds == float("inf") else max(0.0, seconds)
        for key, _ in self._selector.select(limit):
            key.data()

    def drain(self) -> None:
        """The rest of all pipes."""
        end = time.monotonic() + DRAIN_SECONDS
        while self._pipes and time.monotonic() < end:
            self.wait(end - time.monotonic())
