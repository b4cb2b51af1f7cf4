"""How a process becomes a rank, and how some processes are started as the ranks of one run.

`ranks` is for the program that is a rank, `launch` for the one that starts them. Knows no model and no tensor; whatever
sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, `torchrun` say, may take the place of `launch`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from samebits.parallel.launching_processes import Process, Screen
from samebits.parallel.launching_watch import Watch
from samebits.parallel.rank_errors import RankError
from samebits.parallel.rank_status import failure_of, shared, tell_failure
from samebits.parallel.rendezvous import LOOPBACK, open_store
from samebits.parallel.world import TIMEOUT, World, join, leave

COULD_NOT_BE_JUDGED: Final = 3
TIMEOUT_VARIABLE: Final = "SAMEBITS_TIMEOUT"
# Failures that are about another rank: a hang tells more than a lost connection.
CONSEQUENCES: Final = {"hung": 1, "lost": 2}
# A rank that only lost another one may be heard first, or one that leaves it to rank 0 to say what all of them found:
# whoever has something to say is given this long.
SETTLE_SECONDS: Final = 2.0
# One that has said why it fails ends by itself, with its own code and last words; on a busy machine that takes longer.
LEAVING_SECONDS, LOOK_SECONDS = 30.0, 0.1
# From the polite end of a rank to the other one.
GRACE_SECONDS: Final = 3.0


@contextmanager
def ranks(
    *, device: str = "cpu", timeout: float | None = None, tell: Callable[[str, int], None] | None = None
) -> Iterator[World]:
    """The world into which this process was launched, joined at the start and left in order at the end; a world of one
    rank where nobody launched it. Seconds of `timeout`: as given, else the launcher's, else TIMEOUT.

    A failure between ranks (RankError) is one line on stderr and the end of this process, at once, with code 3: what
    a broken process group would do while the interpreter ends is nobody's promise. So nothing behind this block runs
    then; what must be closed is closed inside. Any other exception goes on as it would, and the other ranks hear it.
    `tell` says the line, with its code, in another way."""
    try:
        world = join(device=device, timeout=_timeout(timeout))
    except RankError as error:
        _end(error, tell)
    try:
        yield world
        leave(world)
    except RankError as error:
        _end(error, tell)
    except BaseException as error:
        tell_failure(world, "raised", f"rank {world.rank}: {type(error).__name__}")
        raise


def _timeout(given: float | None) -> float:
    text = os.environ.get(TIMEOUT_VARIABLE, str(TIMEOUT))
    try:
        seconds = float(text) if given is None else given
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"ranks: timeout is {text if given is None else given}; allowed: seconds above 0")
    return seconds


def _end(error: RankError, tell: Callable[[str, int], None] | None) -> NoReturn:
    if tell is None:
        print(f"samebits: {error}", file=sys.stderr)
    else:
        tell(str(error), COULD_NOT_BE_JUDGED)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(COULD_NOT_BE_JUDGED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How one rank ended."""

    rank: int
    code: int
    """As a shell says it: 128 + n where signal n killed it."""
    signal: int
    """The signal that killed it, or 0."""
    seconds: float
    """From the start of the run."""
    asked: bool
    """The launcher ended it, because of another rank or because it was told to."""
    kind: str
    """What the rank itself said of its end: `lost` and `hung` are about other ranks; empty where it said nothing."""
    words: str
    """The last line on its stderr."""

    @property
    def how(self) -> str:
        return f"killed by {_name(self.signal)}" if self.signal else f"exit {self.code}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a run of some ranks ended."""

    ranks: tuple[Ended, ...]
    interrupted: int
    """The signal that ended the launcher's run, or 0."""

    @property
    def first(self) -> Ended | None:
        """The first cause: a rank that failed by itself before one that only missed another, then the earliest."""
        failed = [each for each in self.ranks if each.code and not each.asked]
        return min(failed, key=lambda each: (CONSEQUENCES.get(each.kind, 0), each.seconds, each.rank), default=None)

    @property
    def code(self) -> int:
        if self.interrupted:
            return 128 + self.interrupted
        return self.first.code if self.first else 0

    @property
    def message(self) -> str:
        """One line; empty where all went well."""
        if self.interrupted:
            return f"{_name(self.interrupted)}: all {len(self.ranks)} ranks were ended"
        first = self.first
        if first is None:
            return ""
        # Nobody writes last words before these.
        silent = not first.words or first.signal in (signal.SIGKILL, signal.SIGTERM)
        return f"rank {first.rank} failed first ({first.how})" + ("" if silent else f": {first.words}")


def _name(number: int) -> str:
    return {each.value: each.name for each in signal.Signals}.get(number, f"signal {number}")


def launch(
    command: Sequence[str], size: int, *, timeout: float = TIMEOUT, screen: Screen | None = None, host: str = LOOPBACK
) -> Outcome:
    """Runs `size` processes of one command as the ranks of one run, on this machine, and waits for their end.

    They meet at `host`, an address of this machine; at a loopback address nothing of them listens anywhere else.

    The first failure ends the others, as SIGINT, SIGTERM and SIGHUP do; if this process is killed, the kernel kills
    them. Only in a main thread, which signals reach."""
    if size < 1:
        raise ValueError(f"launch: nproc is {size}; allowed: at least 1")
    _timeout(timeout)
    screen = Screen() if screen is None else screen
    # Here and not on a rank, so that ranks can still be asked whatever becomes of any of them.
    store = open_store(host, 0, timeout, serves=True)
    start = time.monotonic()
    processes: list[Process] = []
    with Watch() as watch:
        try:
            for rank in range(size):
                processes.append(
                    Process(rank, command, _environment(rank, size, (host, store.port), timeout), watch, screen)
                )
            interrupted = _wait(processes, watch, lambda each: _leaving(shared(store), each.rank))
        finally:
            for process in processes:
                process.kill()
    outcome = Outcome(ranks=tuple(_ended(each, start, shared(store)) for each in processes), interrupted=interrupted)
    if outcome.first is not None:
        processes[outcome.first.rank].show_kept()
    return outcome


def _environment(rank: int, size: int, meeting: tuple[str, int], timeout: float) -> dict[str, str]:
    threads = str(max(1, len(os.sched_getaffinity(0)) // size))
    return (
        {"OMP_NUM_THREADS": threads, "TORCH_CPP_LOG_LEVEL": "ERROR"}
        | os.environ
        | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": meeting[0],
            "MASTER_PORT": str(meeting[1]),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            TIMEOUT_VARIABLE: str(timeout),
        }
    )


def _wait(processes: Sequence[Process], watch: Watch, leaving: Callable[[Process], bool]) -> int:
    """Until no process is left; the signal that came in between, or 0."""
    asked, due, latest = False, float("inf"), float("inf")
    while any(process.running for process in processes):
        watch.wait(due - time.monotonic())
        now = time.monotonic()
        if not asked:
            due = min([due, *(now + _settling(each) for each in processes if each.failed)])
            due = now if watch.signal else due
            latest = now if watch.signal else min(latest, due + LEAVING_SECONDS)
        if due <= now < latest and not asked and any(each.running and leaving(each) for each in processes):
            due = now + LOOK_SECONDS
        elif now >= due:
            for process in processes:
                process.kill() if asked else process.ask()
            due = float("inf") if asked else now + GRACE_SECONDS
            asked = True
    watch.drain()
    return watch.signal


def _leaving(store: Any, rank: int) -> bool:
    """A rank has said that it fails, and not because of another one."""
    return failure_of(store, rank).get("kind", "") not in ("", *CONSEQUENCES)


def _settling(process: Process) -> float:
    """A signal is nobody's word: it has said everything."""
    return 0.0 if process.code < 0 else SETTLE_SECONDS


def _ended(process: Process, start: float, store: Any) -> Ended:
    killed = max(0, -process.code)
    return Ended(
        rank=process.rank,
        code=128 + killed if killed else process.code,
        signal=killed,
        asked=process.asked,
        seconds=process.ended_at - start,
        kind=failure_of(store, process.rank).get("kind", ""),
        words=process.last_words,
    )
