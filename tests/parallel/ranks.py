"""Real ranks for tests: a function run in some processes at once, each with a world of its own making, on loopback.

Processes are forked from a server that has imported torch already, so that eight of them cost no more than one."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from samebits.parallel.world import World, join, leave

FORKING = multiprocessing.get_context("forkserver")
# The first backward pass of a process imports symbolic shapes, which takes seconds.
FORKING.set_forkserver_preload(
    [
        "torch",
        "torch.distributed",
        "torch.fx.experimental.symbolic_shapes",
        "torch.distributed.fsdp",
        "torch.distributed.tensor.debug",
        "torch.distributed.tensor.parallel",
        "samebits",
        "samebits.model",
        "tests.parallel.ranks",
    ]
)


# Of one core; ranks that wait for each other use far less, and eight that compute on a busy machine far more.
LEAST_SHARE = 0.02


class RankFailedError(AssertionError):
    """A rank raised; its own words."""


def on_ranks(
    size: int, function: Callable[..., Any], *arguments: Any, seconds: float = 120.0, timeout: float = 120.0
) -> list[Any]:
    """function(world, *arguments) on every rank; what each returned, in the order of ranks.

    `function` must be a module's own; the first failure ends the others and is raised. Ranks that compute may take as
    long as a busy machine makes them; `seconds` in which they neither end nor compute are a failure."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=seconds))
    processes, ends = [], []
    for rank in range(size):
        end, other = FORKING.Pipe(duplex=False)
        started = FORKING.Process(
            target=_rank, args=(other, rank, size, store.port, timeout, function, arguments), daemon=True
        )
        started.start()
        other.close()
        processes.append(started)
        ends.append(end)
    try:
        return _results(ends, [process.pid for process in processes], seconds)
    finally:
        for process in processes:
            process.kill()
            process.join()


def computed(process: int | None) -> float:
    """Seconds that a process has computed so far; 0 once it has gone."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _results(ends: list[Connection], processes: list[int | None], seconds: float) -> list[Any]:
    found: dict[int, Any] = {}
    before: dict[int, float] = {}
    while len(found) < len(ends):
        ready = wait([end for rank, end in enumerate(ends) if rank not in found], timeout=seconds)
        if not ready:
            missing = [rank for rank in range(len(ends)) if rank not in found]
            now = {rank: computed(processes[rank]) for rank in missing}
            if sum(spent - before.get(rank, 0.0) for rank, spent in now.items()) < LEAST_SHARE * seconds:
                raise RankFailedError(f"ranks {missing} neither ended nor computed within {seconds} s")
            before = now
            continue
        for end in ready:
            rank = ends.index(end)  # type: ignore[arg-type]
            try:
                good, found[rank] = pickle.loads(end.recv_bytes())  # type: ignore[union-attr]
            except EOFError:
                raise RankFailedError(f"rank {rank} ended without a word") from None
            if not good:
                raise RankFailedError(f"rank {rank}: {found[rank]}")
    return [found[rank] for rank in range(len(ends))]


def _rank(
    end: Connection,
    rank: int,
    size: int,
    port: int,
    timeout: float,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    torch.set_num_threads(1)
    try:
        world: World = join(timeout=timeout)
        # By value: multiprocessing's own way would lend memory of a process that may have ended by then.
        end.send_bytes(pickle.dumps((True, function(world, *arguments))))
        leave(world)
    except BaseException:
        end.send_bytes(pickle.dumps((False, traceback.format_exc())))
