"""Real ranks for tests: a function run once in some processes at once, in a world that ends with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from samebits.parallel.local_ranks import FORKING, PRELOADED, LocalRanks, RankFailedError, computed

__all__ = ["FORKING", "RankFailedError", "computed", "on_ranks"]

MORE = (
    "torch.distributed.fsdp",
    "torch.distributed.tensor.debug",
    "torch.distributed.tensor.parallel",
    "tests.parallel.ranks",
)
# The server starts with the first process, whoever starts it.
FORKING.set_forkserver_preload([*PRELOADED, *MORE])


def on_ranks(
    size: int, function: Callable[..., Any], *arguments: Any, seconds: float = 120.0, timeout: float = 120.0
) -> list[Any]:
    """function(world, *arguments) on every rank; what each returned, in the order of ranks."""
    with LocalRanks(size, seconds=seconds, timeout=timeout, preload=MORE) as ranks:
        return ranks.call(function, *arguments)
