"""What is wrong with a kernel that ran, and the place in its source where that was seen."""

from __future__ import annotations

import linecache
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Final

KERNEL: Final = "__run_by_hopper_on_cpu__"
"""A global name that only functions of kernels see; it tells their frames from the machine's."""


class Unsupported(Exception):  # noqa: N818
    """The kernel asks for something that this machine cannot do."""


class Finding(Exception):  # noqa: N818
    """What a kernel does wrong. `kind` is one word:

    accumulator: a product is used before the wait for it.
    arrivals: more arrive at a barrier than its phase still misses.
    barrier: one is used that nobody initialised, or initialised twice.
    bounds: a pointer leaves its tensor.
    branch: in assembly, threads of a warp go different ways where they say that they go one.
    deadlock: nobody can go on.
    fence: a tensor core or a copy reads shared memory that threads wrote, and no fence stands between.
    phase: a wait for a parity that is neither 0 nor 1.
    poison: shared memory is read that nobody wrote.
    race: two accesses to shared memory, one of them a write, and nothing that puts one before the other.
    unfinished: a program ends while a copy or a product may still be under way."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(kind, words)
        self.kind = kind
        self.words = words
        self.strand = threading.current_thread().name
        self.place = place()

    def __str__(self) -> str:
        return f"{self.kind}: {self.words} [{self.strand}, {self.place}]"


def place(*, quoted: bool = False) -> str:
    """The function and line of the kernel that is being run by this thread; quoted: with the line's text."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and KERNEL not in frame.f_globals:
        frame = frame.f_back
    if frame is None:
        return "outside of the kernel"
    file, line = frame.f_code.co_filename, frame.f_lineno
    text = f": {linecache.getline(file, line).strip()}" if quoted else ""
    return f"{frame.f_code.co_name} at {Path(file).name}:{line}{text}"
