"""Ranks as processes of this machine, which wait for work: a function of a module, run on all of them at once.

They are forked from a server that has imported torch already, so that eight of them cost hardly more than one."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

import torch

from samebits.parallel.rendezvous import LOOPBACK, open_store
from samebits.parallel.world import World, join, leave

FORKING: Final = multiprocessing.get_context("forkserver")
# The first backward pass of a process imports symbolic shapes, which takes seconds.
PRELOADED: Final = (
    "torch",
    "torch.distributed",
    "torch.fx.experimental.symbolic_shapes",
    "samebits",
    "samebits.model",
    __name__,
)
# Of one core; ranks that wait for each other use far less, and eight that compute on a busy machine far more.
LEAST_SHARE: Final = 0.02


class RankFailedError(RuntimeError):
    """A rank raised, or ended; its own words."""


class LocalRanks:
    """So many ranks in one world on loopback. A failure of one ends them all."""

    def __init__(
        self, size: int, *, seconds: float = 120.0, timeout: float = 120.0, preload: Sequence[str] = ()
    ) -> None:
        """Ranks that compute may take as long as a busy machine makes them; `seconds` in which they neither end nor
        compute are a failure. `timeout` is the world's; `preload` names modules to import once for all of them."""
        self.size, self.seconds = size, seconds
        FORKING.set_forkserver_preload([*PRELOADED, *preload])
        self._store = open_store(LOOPBACK, 0, seconds, serves=True)
        self._processes, self._ends = [], list[Connection]()
        for rank in range(size):
            end, other = FORKING.Pipe()
            started = FORKING.Process(target=_serve, args=(other, rank, size, self._store.port, timeout), daemon=True)
            started.start()
            other.close()
            self._processes.append(started)
            self._ends.append(end)

    def __enter__(self) -> LocalRanks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        return not self._processes

    def call(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """function(world, *arguments) on every rank: what each returned, in the order of ranks.

        `function` must be a module's own; the first failure ends all ranks and is raised."""
        if self.closed:
            raise RankFailedError(f"{self.size} ranks have ended; start others")
        asked = pickle.dumps((function, arguments))
        try:
            for rank, end in enumerate(self._ends):
                _tell(end, rank, asked)
            return self._answers()
        except BaseException:
            self.close()
            raise

    def _answers(self) -> list[Any]:
        found: dict[int, Any] = {}
        before: dict[int, float] = {}
        while len(found) < self.size:
            missing = [rank for rank in range(self.size) if rank not in found]
            ready = wait([self._ends[rank] for rank in missing], timeout=self.seconds)
            if not ready:
                now = {rank: computed(self._processes[rank].pid) for rank in missing}
                if sum(spent - before.get(rank, 0.0) for rank, spent in now.items()) < LEAST_SHARE * self.seconds:
                    raise RankFailedError(f"ranks {missing} neither ended nor computed within {self.seconds} s")
                before = now
            for rank in missing:
                if self._ends[rank] in ready:
                    found[rank] = _heard(self._ends[rank], rank)
        return [found[rank] for rank in range(self.size)]

    def close(self) -> None:
        """Ends every rank, whatever it is doing."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for end in self._ends:
            end.close()
        self._processes, self._ends = [], []


def _tell(end: Connection, rank: int, asked: bytes) -> None:
    try:
        end.send_bytes(asked)
    except OSError:
        # What it said before it ended tells more than that it has.
        _heard(end, rank)


def _heard(end: Connection, rank: int) -> Any:
    try:
        good, found = pickle.loads(end.recv_bytes())
    except (EOFError, OSError):
        raise RankFailedError(f"rank {rank} ended without a word") from None
    if not good:
        raise RankFailedError(f"rank {rank}: {found}")
    return found


def computed(process: int | None) -> float:
    """Seconds that a process has computed so far; 0 once it has gone."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _serve(end: Connection, rank: int, size: int, port: int, timeout: float) -> None:
    """A rank: joins, answers one call after the other, and leaves when nobody asks any more."""
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    torch.set_num_threads(1)
    try:
        world: World = join(timeout=timeout)
        while (asked := _asked(end)) is not None:
            function, arguments = asked
            # By value: multiprocessing's own way would lend memory of a process that may have ended by then.
            end.send_bytes(pickle.dumps((True, function(world, *arguments))))
        leave(world)
    except BaseException:
        end.send_bytes(pickle.dumps((False, traceback.format_exc())))


def _asked(end: Connection) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    try:
        found: tuple[Callable[..., Any], tuple[Any, ...]] = pickle.loads(end.recv_bytes())
    except EOFError:
        return None
    return found
