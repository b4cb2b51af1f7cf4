"""The strands of a kernel's programs, what is under way beside them, and a scheduler that a seed decides.

A strand is a partition of a program, or the whole of one without partitions. Strands are threads of which one runs at a
time; at every operation that others may notice the scheduler says who goes on, or lets a copy or a product finish. What
happened before what is kept apart from when things happened: a strand knows the accesses that are ordered before it, as
bits of an integer, and tells them to a barrier when it arrives. So a race is found in any interleaving. Knows no
language."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.ops.hopper_on_cpu.finding import Finding, place

if TYPE_CHECKING:
    from tests.ops.hopper_on_cpu.shared import Allocation


class Stopped(BaseException):
    """Ends the thread of a strand because another one failed."""


@dataclass(eq=False)
class Access:
    """One access of a program to its shared memory."""

    number: int
    words: str

    @property
    def bit(self) -> int:
        return 1 << self.number


@dataclass(eq=False)
class Operation:
    """A copy or a product that a strand has begun and that finishes at some moment by itself."""

    finish: Callable[[], None]
    access: Access
    in_order: list[Operation] | None = None
    """Those that finish one after another, this one among them."""
    done: bool = False

    def may_finish(self) -> bool:
        return self.in_order is None or next(each for each in self.in_order if not each.done) is self


class Program:
    """One program of the grid: a thread block with its shared memory."""

    def __init__(self, at: tuple[int, int, int]) -> None:
        self.at = at
        self.name = f"program {at[0] if at[1:] == (0, 0) else at}"
        self.accesses = 0
        self.asynchronous: list[Access] = []
        self.allocations: list[Allocation] = []

    def access(self, words: str, *, asynchronous: bool = False) -> Access:
        made = Access(self.accesses, f"{words} by {threading.current_thread().name} in {place()}")
        self.accesses += 1
        if asynchronous:
            self.asynchronous.append(made)
        return made

    def end(self, known: int) -> None:
        """The program is over: whatever it began must be."""
        for access in self.asynchronous:
            if not known & access.bit:
                raise Finding("unfinished", f"the program ends, and nobody has waited for {access.words}")


@dataclass(eq=False)
class Strand:
    """What one group of warps does, as a thread that runs when it is told to."""

    name: str
    program: Program
    body: Callable[[], None]
    warps: int
    known: int = 0
    """The accesses that are ordered before what comes next."""
    products: list[Operation] = field(default_factory=list)
    """Those of the tensor cores that were not waited for, in order; likewise copies from shared to global memory."""
    stores: list[Operation] = field(default_factory=list)
    ready: Callable[[], bool] | None = None
    waits_for: Callable[[], str] | None = None
    weight: int = 1
    over: bool = False
    thread: threading.Thread | None = None
    baton: threading.Lock = field(default_factory=threading.Lock)

    def be_named(self, name: str) -> None:
        """Another name for the strand that runs, in what is said of it."""
        self.name = threading.current_thread().name = name

    def can_run(self) -> bool:
        return not self.over and (self.ready is None or self.ready())


class Barrier:
    """An mbarrier: a phase is complete when all arrivals and all expected bytes are there, and the next begins.

    Who waits for a parity goes on once the phase under way has the other one."""

    def __init__(self, count: int) -> None:
        self.count = self.missing = count
        self.bytes = 0
        self.phase = 0
        self.gathered = 0
        """What those know who arrived in this phase."""
        self.known = 0
        """What those know who arrived in phases that are complete."""

    def arrive(self, count: int, known: int) -> None:
        if count > self.missing:
            raise Finding("arrivals", f"{count} arrive at a barrier that {self}")
        self.missing -= count
        self.gathered |= known
        self._complete()

    def expect(self, count: int, known: int) -> None:
        """Copies of so many bytes belong to this phase; to say so is an arrival."""
        self.bytes += count
        self.arrive(1, known)

    def receive(self, count: int, known: int) -> None:
        self.bytes -= count
        self.gathered |= known
        self._complete()

    def _complete(self) -> None:
        if self.missing == 0 and self.bytes == 0:
            self.phase += 1
            self.missing = self.count
            self.known |= self.gathered
            self.gathered = 0

    def __str__(self) -> str:
        missing = f"{self.missing} of {self.count} arrivals and {self.bytes} bytes"
        return f"is in phase {self.phase}, where {missing} are missing"


class Machine:
    """Runs strands to their end, one at a time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        # Seeds differ in how soon what is under way finishes, and in which strands run ahead of others.
        self.haste = self.random.choice((0.02, 0.3, 0.8))
        self.strands: list[Strand] = []
        self.operations: list[Operation] = []
        self.strand: Strand
        """The one that runs."""
        self.failure: BaseException | None = None
        self.finished = threading.Event()

    def add(self, strand: Strand) -> Strand:
        strand.weight = self.random.choice((1, 30, 1000))
        self.strands.append(strand)
        return strand

    def run(self) -> None:
        self._resume(self._next())
        self.finished.wait()
        for strand in self.strands:
            if strand.thread is not None:
                strand.thread.join()
        if self.failure is not None:
            raise self.failure

    def turn(self, ready: Callable[[], bool] | None = None, waits_for: Callable[[], str] | None = None) -> None:
        """Lets others go first; comes back when the scheduler says so, and not before the strand is ready."""
        strand = self.strand
        strand.ready, strand.waits_for = ready, waits_for
        chosen = self._next()
        if chosen is not strand:
            self._resume(chosen)
            strand.baton.acquire()
            if self.failure is not None:
                raise Stopped
        strand.ready = strand.waits_for = None

    def begin(self, operation: Operation) -> Operation:
        if operation.in_order is not None:
            operation.in_order.append(operation)
        self.operations.append(operation)
        return operation

    def wait_in_order(self, operations: list[Operation], left: int, words: str) -> list[Operation]:
        """Blocks until at most so many of a queue are not done; the others leave it, ordered before the strand."""
        covered = operations[: max(0, len(operations) - left)]
        self.turn(lambda: all(each.done for each in covered), lambda: words)
        for each in covered:
            self.strand.known |= each.access.bit
        del operations[: len(covered)]
        return covered

    def _next(self) -> Strand:
        """Who runs next, after whatever finishes before that."""
        while True:
            able = [strand for strand in self.strands if strand.can_run()]
            operations = [each for each in self.operations if each.may_finish()]
            if operations and (not able or self.random.random() < self.haste):
                operation = self.random.choice(operations)
                operation.finish()
                operation.done = True
                self.operations.remove(operation)
            elif able:
                return self.random.choices(able, [strand.weight for strand in able])[0]
            else:
                raise Finding("deadlock", "nobody can go on\n" + "\n".join(self._waiting()))

    def _waiting(self) -> list[str]:
        return [
            f"{strand.name} waits {strand.waits_for()}"
            for strand in self.strands
            if not strand.over and strand.waits_for is not None
        ]

    def _resume(self, strand: Strand) -> None:
        self.strand = strand
        if strand.thread is None:
            strand.baton.acquire()
            strand.thread = threading.Thread(target=self._live, args=(strand,), name=strand.name, daemon=True)
            strand.thread.start()
        else:
            strand.baton.release()

    def _live(self, strand: Strand) -> None:
        """A strand's whole life, in its thread. A failure ends all others, and is raised by `run`."""
        try:
            strand.body()
            strand.over = True
            if all(each.over for each in self.strands):
                self.finished.set()
            else:
                self._resume(self._next())
        except Stopped:
            pass
        except BaseException as failure:
            self.failure = failure
            for each in self.strands:
                if each is not strand and each.thread is not None and not each.over:
                    each.baton.release()
            self.finished.set()
