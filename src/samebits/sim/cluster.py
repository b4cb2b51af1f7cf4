"""One run on the virtual cluster: its ranks, its store, its network, and what came of it.

`execute` is the whole of it: a function on every rank, to the end. `spawn` is built on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

from samebits.sim import group as _group
from samebits.sim.choices import Policy, Trace
from samebits.sim.errors import SpawnException
from samebits.sim.faults import Fault, Faults
from samebits.sim.host_reads import HostReads, wait_here
from samebits.sim.isolation import enter_rank, isolated
from samebits.sim.journal import Journal
from samebits.sim.network import OURS, Network, Parts
from samebits.sim.random_state import Streams
from samebits.sim.rank import Rank, State
from samebits.sim.scheduler import Limits, Scheduler
from samebits.sim.store import YieldingStore

STACK_BYTES: Final = 1 << 20
MOST_RANKS: Final = 1024


def _plain(number: int) -> AbstractContextManager[object]:
    return nullcontext()


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How a run is made: who picks, what fails, and the parts it is made of. Only faulty parts change bits."""

    policy: Policy | None = None
    faults: tuple[Fault, ...] = ()
    limits: Limits = field(default_factory=Limits)
    parts: Parts = OURS
    streams: Callable[[int], Streams] = Streams
    around: Callable[[int], AbstractContextManager[object]] = _plain
    """Entered by every rank's own thread: a cost counter, say."""
    host_reads: type[HostReads] = HostReads


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run that ended well."""

    results: list[Any]
    """What each rank returned."""
    clocks: list[float]
    """Simulated seconds of each rank."""
    trace: Trace
    journal: Journal


class Cluster:
    """A run under way."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], ranks: int, settings: Settings) -> None:
        if not 1 <= ranks <= MOST_RANKS:
            raise ValueError(f"ranks must lie in 1..{MOST_RANKS}, got {ranks}")
        for fault in settings.faults:
            if fault.rank >= ranks:
                raise ValueError(f"fault {fault}: rank is {fault.rank}; allowed: 0..{ranks - 1} of {ranks} ranks")
        _group.register()
        self.faults = Faults(settings.faults)
        self.store = YieldingStore()
        self.settings = settings
        environments = [
            {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_PORT": "1",
                "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "sim",
                "SAMEBITS_TRANSPORT": "sim",
            }
            for rank in range(ranks)
        ]
        self._streams = settings.streams(ranks)
        self._scheduler = Scheduler(
            [_body(function, rank, args) for rank in range(ranks)],
            environments,
            enter=self._enter,
            streams=self._streams,
            policy=settings.policy,
            faults=self.faults,
            limits=settings.limits,
        )
        self.ranks = self._scheduler.ranks
        self.network = Network(self, self._scheduler.engine, settings.parts)
        for rank in self.ranks:
            rank.cluster = self

    @property
    def pauses(self) -> bool:
        return self._scheduler.policy.pauses

    @property
    def trace(self) -> Trace:
        return self._scheduler.trace

    def _enter(self, scope: ExitStack, rank: Rank) -> None:
        enter_rank(scope, rank)
        scope.enter_context(self.settings.host_reads(self.network.writers, wait_here))
        scope.enter_context(self.settings.around(rank.number))

    def run(self, until: float = float("inf")) -> bool:
        """Goes on; whether every rank has ended. SpawnException where ranks failed."""
        before = threading.stack_size(STACK_BYTES)
        try:
            with isolated():
                ended = self._scheduler.run(until)
                self._scheduler.engine.drain()
        finally:
            for rank in self.ranks:
                rank.join()
            threading.stack_size(before)
            self._streams.restore()
        errors = {rank.number: rank.error for rank in self.ranks if rank.error is not None}
        abandoned = tuple(rank.number for rank in self.ranks if rank.state is State.ABANDONED)
        if errors or abandoned:
            raise SpawnException(errors, {rank.number: rank.told for rank in self.ranks}, abandoned)
        return ended

    def outcome(self) -> Outcome:
        return Outcome(
            [rank.result for rank in self.ranks], [rank.clock for rank in self.ranks], self.trace, self.network.journal
        )


def _body(function: Callable[..., Any], rank: int, args: Sequence[Any]) -> Callable[[], Any]:
    return lambda: function(rank, *args)


def execute(
    function: Callable[..., Any], ranks: int, args: Sequence[Any] = (), *, settings: Settings | None = None
) -> Outcome:
    """function(rank, *args) on every rank, to the end."""
    cluster = Cluster(function, args, ranks, settings or Settings())
    cluster.run()
    return cluster.outcome()
