"""Who runs, among how many, on which SIP: asked of the running rank's own record, never of the process.

One rank is one SIP. Outside of ranks there is the main context, whose world is as large as the topology that was
installed (one SIP unless told); in a world of several it is no rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from samebits.sim.rank import current


@dataclass(frozen=True, slots=True)
class WorldSize:
    """How many ranks a run has. An algorithm's own entry goes before the defaults, and these before the topology."""

    topology: int = 1
    """SIPs that there are."""
    defaults: int | None = None
    algorithm: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("topology", self.topology), ("defaults", self.defaults), ("algorithm", self.algorithm)):
            if value is not None and not 1 <= value <= self.topology:
                raise ValueError(f"world size: {name} is {value}; allowed: 1 to {self.topology}, the SIPs there are")

    @property
    def resolved(self) -> int:
        if self.algorithm is not None:
            return self.algorithm
        return self.topology if self.defaults is None else self.defaults


_installed = WorldSize()


@contextmanager
def installed(world: WorldSize) -> Iterator[None]:
    """The topology of the main context, inside."""
    global _installed
    before, _installed = _installed, world
    try:
        yield
    finally:
        _installed = before


def get_world_size() -> int:
    """Of the running rank's run; in the main context that of the installed topology."""
    rank = current()
    return _installed.resolved if rank is None else len(rank.cluster.ranks)


def get_rank() -> int:
    """Of whoever runs. In the main context 0 where the world has one rank, else RuntimeError."""
    rank = current()
    if rank is not None:
        return rank.number
    if get_world_size() == 1:
        return 0
    raise RuntimeError(f"get_rank: the main context is none of the {get_world_size()} ranks; ask inside a rank")
