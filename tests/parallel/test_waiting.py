"""How tests wait for ranks: as long as they compute, on however busy a machine; not for ranks that do nothing."""

from __future__ import annotations

import time

import pytest
from tests.parallel.ranks import RankFailedError, on_ranks

from samebits.parallel.world import World

SECONDS = 1.0


def computing(world: World) -> int:
    """Three times as long as anybody waits for ranks that do nothing."""
    end = time.process_time() + 3 * SECONDS
    while time.process_time() < end:
        pass
    return world.rank


def idle(world: World) -> None:
    time.sleep(3600)


def test_ranks_that_compute_are_waited_for() -> None:
    assert on_ranks(1, computing, seconds=SECONDS) == [0]


def test_ranks_that_do_nothing_are_noticed() -> None:
    """Planted fault: both hang."""
    with pytest.raises(RankFailedError, match=r"^ranks \[0, 1\] neither ended nor computed within 1.0 s$"):
        on_ranks(2, idle, seconds=SECONDS)
