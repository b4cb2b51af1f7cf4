"""Launch numbers forced from outside: threads, instruction set, tile. That they decide no bits is checked with this.

For checkers and tuners. Process-wide, because gradients may run on another thread than the one that asked for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from samebits import native

# One, as many as small machines have, an odd number, and more than most have.
CPU_THREADS = (1, 2, 3, 7)
_lock = threading.RLock()
_forced: list[Mapping[str, object]] = []


@contextmanager
def launching(**numbers: object) -> Iterator[None]:
    """Within the block every operator uses these launch numbers where they concern it. One block at a time."""
    with _lock:
        _forced.append(numbers)
        try:
            yield
        finally:
            _forced.pop()


def forced(name: str) -> object | None:
    """The innermost forced value of a launch number, or None where the operator may choose."""
    for numbers in reversed(_forced):
        if name in numbers:
            return numbers[name]
    return None


def cpu_launches(threads: tuple[int, ...] = CPU_THREADS) -> list[dict[str, object]]:
    """Launch numbers of the CPU that must not change a bit: threads times the instruction sets this machine has."""
    return [{"threads": count, "instruction_set": isa} for isa in native.instruction_sets() for count in threads]
