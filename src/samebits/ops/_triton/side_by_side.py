"""Launches that wait for each other and then run side by side: those that alone leave most of a GPU with nothing to do.

Knows no operator. Whoever lets launches of a stream wait says that nobody reads their results before `launched` ends;
what they read is kept until then. Who runs beside whom decides speed alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from samebits.ops._triton.device import multiprocessors

STREAMS: Final = 8
_waiting: dict[int, SideBySide] = {}
"""By the stream whose launches wait."""


class SideBySide:
    """Launches of one stream that wait. Made before a graph is captured, since it makes streams."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._at_once = multiprocessors(device)
        self._streams: list[Any] = [torch.cuda.Stream(device) for _ in range(STREAMS)]
        self._starts: list[Callable[[], None]] = []
        self._programs = 0
        self._results: set[int] = set()

    @contextmanager
    def launched(self) -> Iterator[None]:
        """Within the block launches of the current stream wait; at its end all of them are behind it in the stream."""
        stream = torch.cuda.current_stream(self._device).cuda_stream
        if stream in _waiting:
            raise RuntimeError("side by side: launches of this stream wait already; allowed: one block at a time")
        _waiting[stream] = self
        try:
            yield
            self._flush()
        finally:
            del _waiting[stream]
            self._forget()

    def take(self, start: Callable[[], None], programs: int, result: int) -> bool:
        """Whether it waits: it has few programs. `result`: where it writes; two to one place keep their order."""
        if 2 * programs > self._at_once:
            return False
        if self._programs + programs > self._at_once or result in self._results:
            self._flush()
        self._starts.append(start)
        self._programs += programs
        self._results.add(result)
        return True

    def _flush(self) -> None:
        current = torch.cuda.current_stream(self._device)
        used = self._streams[: len(self._starts)]
        for stream in used:
            stream.wait_stream(current)
        for number, start in enumerate(self._starts):
            with torch.cuda.stream(self._streams[number % STREAMS]):
                start()
        for stream in used:
            current.wait_stream(stream)
        self._forget()

    def _forget(self) -> None:
        self._starts.clear()
        self._results.clear()
        self._programs = 0


def waits(device: torch.device, start: Callable[[], None], programs: int, result: int) -> bool:
    """Whether the launch of so many programs waits for others of the current stream; else it is to be made now."""
    if not _waiting:
        return False
    found = _waiting.get(torch.cuda.current_stream(device).cuda_stream)
    return found is not None and found.take(start, programs, result)
