"""What is done for a request before the engine hears of it: few threads, in queues, and a bound on all that waits.

A body is counted while it comes. Short requests have a queue of their own, so that long ones cannot hold them up, and
so have chats, whose templates are others' programs. Knows neither HTTP nor tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from samebits.infer.server.limits import Limits, RefusedError

T = TypeVar("T")
RETRY_SECONDS = 1


@dataclass(eq=False)
class Body:
    """The bytes of one request, as they come."""

    intake: Intake
    content: bytearray = field(default_factory=bytearray)

    @property
    def counted(self) -> int:
        """The bytes beyond those that every request is free to have."""
        return max(0, len(self.content) - self.intake.limits.short_bytes)

    def announce(self, length: int) -> None:
        """A body that would be too much is refused before any of it is taken; nothing is kept for it."""
        self._check(self.intake.bytes + max(0, length - self.intake.limits.short_bytes))

    def add(self, piece: bytes) -> None:
        limits, before = self.intake.limits, self.counted
        limits.check("body_bytes", len(self.content) + len(piece), "the number of bytes of the body", None, 413)
        self.content += piece
        self.intake.bytes += self.counted - before
        self._check(self.intake.bytes)

    def _check(self, found: int) -> None:
        most = self.intake.limits.waiting_bytes
        if found > most:
            what = f"requests that come or wait to be read have {found} bytes beyond the first of each"
            raise _busy(f"{what}; allowed: at most {most}")


class Queue:
    """Some threads, and those who wait for them."""

    def __init__(self, name: str, threads: int, most: int) -> None:
        self._most, self._waiting, self._stopped = most, 0, False
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def run(self, work: Callable[[], T]) -> T:
        if self._waiting >= self._most:
            raise _busy(f"{self._waiting} requests wait to be read; allowed: at most {self._most}")
        self._waiting += 1
        try:
            if self._stopped:
                raise _stopping()
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except asyncio.CancelledError:
            if self._stopped:
                raise _stopping() from None
            raise
        finally:
            self._waiting -= 1

    def stop(self) -> None:
        """What has not begun never does."""
        self._stopped = True
        self._threads.shutdown(wait=False, cancel_futures=True)


class Intake:
    """The queues, and the bytes of all bodies. For the asyncio loop."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.bytes = 0
        """Of all requests that are read or wait, beyond the first few of each."""
        self._queues = {
            (chat, short): Queue(
                f"{'chat' if chat else 'text'}-{'short' if short else 'long'}", 1 + short, limits.waiting
            )
            for chat in (False, True)
            for short in (False, True)
        }

    @contextmanager
    def body(self) -> Iterator[Body]:
        """A body whose bytes count for as long as the block lasts."""
        made = Body(self)
        try:
            yield made
        finally:
            self.bytes -= made.counted
            made.content = bytearray()

    async def run(self, body: Body, work: Callable[[bytes], T], *, chat: bool) -> T:
        """Work on a body that has come, in a thread of its queue."""
        content = bytes(body.content)
        return await self._queues[chat, not body.counted].run(lambda: work(content))

    def stop(self) -> None:
        for queue in self._queues.values():
            queue.stop()


def _stopping() -> RefusedError:
    return RefusedError(503, "the server is stopping", retry_after=RETRY_SECONDS)


def _busy(reason: str) -> RefusedError:
    return RefusedError(429, reason, code="queue_full", retry_after=RETRY_SECONDS)
