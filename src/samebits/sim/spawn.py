"""`spawn` with the signature of torch.multiprocessing's, whose ranks are threads of this process under one baton.

Not its isolation: modules and their globals are shared, and a rank that takes the interpreter down takes all down."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from samebits.sim.cluster import Cluster, Outcome, Settings
from samebits.sim.rank import State, current


class Context:
    """Ranks that were spawned and are not joined yet. They advance only inside `join`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def pids(self) -> list[int]:
        """torch's: one a rank. All of them are this process's threads, numbered as ranks."""
        return [rank.number for rank in self._cluster.ranks]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Lets ranks run for at most `timeout` wall-clock seconds; whether all have ended. SpawnException if one fails.

        Ranks are ended at their waits, so that `grace_period` has nothing to bound."""
        if all(rank.state is not State.ALIVE for rank in self._cluster.ranks):
            return True
        return self._cluster.run(float("inf") if timeout is None else time.monotonic() + timeout)

    def outcome(self) -> Outcome:
        """What came of it, once `join` has returned True."""
        return self._cluster.outcome()


def spawn(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> Context | None:
    """fn(i, *args) on `nprocs` ranks. As torch's, whose `daemon` and `start_method` mean nothing to threads."""
    if current() is not None:
        raise RuntimeError("spawn: a rank of the virtual cluster may not spawn another cluster")
    context = Context(Cluster(fn, args, nprocs, Settings()))
    if not join:
        return context
    while not context.join():
        pass
    return None
