"""Waiting: who may move time, what a wait finds, and what happens when nothing more can."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from samebits.sim.choices import Uniform
from samebits.sim.cluster import Settings, execute
from samebits.sim.engine import Engine, Handle
from samebits.sim.errors import DeadlockError, NonProgressError, SpawnException
from samebits.sim.identity import WorldSize, get_world_size, installed
from samebits.sim.rank import Rank, current
from samebits.sim.scheduler import Limits


def here() -> Rank:
    rank = current()
    assert rank is not None
    return rank


def engine_of(rank: Rank) -> Engine:
    return rank.scheduler.engine


def test_R12_a_wait_in_a_rank_parks_it_and_only_the_main_context_advances_time() -> None:
    threads: list[int] = []

    def program(rank: int) -> str:
        own, handle = here(), Handle("a kernel")
        engine_of(own).at(2.5, lambda: (threads.append(threading.get_ident()), handle.complete(2.5)))  # type: ignore[func-returns-value]
        with pytest.raises(RuntimeError, match="only the main context advances simulated time"):
            engine_of(own).step()
        own.wait(handle)
        return "resumed"

    assert execute(program, 2).results == ["resumed"] * 2
    assert set(threads) == {threading.get_ident()}


def test_R13_a_rank_resumed_from_a_wait_finds_its_handle_complete() -> None:
    def program(rank: int) -> bool:
        own, handles = here(), [Handle(f"kernel {number}") for number in range(4)]
        for number, handle in enumerate(handles):
            engine_of(own).at(float(4 - number), handle.complete)
        found = []
        for handle in handles:
            own.wait(handle)
            found.append(handle.done)
        return all(found)

    for seed in range(5):
        assert execute(program, 3, settings=Settings(policy=Uniform(seed, 3))).results == [True] * 3


def test_R14_waiting_for_a_complete_handle_does_not_yield() -> None:
    def program(rank: int) -> int:
        own, handle = here(), Handle("done")
        handle.complete()
        before = own.scheduler.trace.hand_offs
        own.wait(handle)
        return own.scheduler.trace.hand_offs - before

    assert execute(program, 2).results == [0, 0]


def test_R15_advancing_time_while_it_is_advanced_raises() -> None:
    engine = Engine()
    engine.at(1.0, engine.drain)
    engine.at(2.0, lambda: None)
    with pytest.raises(RuntimeError, match="being advanced already"):
        engine.drain()


def test_R16_the_drain_goes_on_until_nothing_is_pending() -> None:
    engine, seen = Engine(), []

    def more(left: int) -> None:
        seen.append(left)
        if left:
            engine.at(engine.now + 1.0, lambda: more(left - 1))

    engine.at(0.0, lambda: more(3))
    engine.drain()
    assert seen == [3, 2, 1, 0] and not engine.pending and engine.now == 3.0


def test_R17_events_are_resumed_by_the_main_engine_and_none_is_lost() -> None:
    """Ranks end while events of theirs are still pending: each of them still happens, in the main context."""
    happened: list[int] = []

    def program(rank: int) -> None:
        engine_of(here()).at(1.0 + rank, lambda: happened.append(threading.get_ident()))

    execute(program, 3)
    assert happened == [threading.get_ident()] * 3


def test_R18_the_ring_of_the_default_world_size_passes_element_by_element() -> None:
    def program(rank: int) -> list[float]:
        dist.init_process_group("sim")
        x = torch.arange(7.0) + rank
        dist.all_reduce(x)
        return x.tolist()

    with installed(WorldSize(topology=3)):
        ranks = get_world_size()
    assert execute(program, ranks).results == [[3.0 * place + 3.0 for place in range(7)]] * 3


def test_R19_a_rank_that_polls_for_ever_is_named() -> None:
    def program(rank: int) -> None:
        dist.init_process_group("sim")
        if rank == 0:
            work = dist.all_reduce(torch.ones(1), async_op=True)
            assert work is not None
            while not work.is_completed():
                pass

    with pytest.raises(SpawnException) as found:
        execute(program, 2, settings=Settings(limits=Limits(polls=50)))
    assert isinstance(found.value.errors[0], NonProgressError) and list(found.value.errors) == [0]
    assert "rank 0 asked" in str(found.value) and "test_waiting.py:" in str(found.value)


def test_R19_polling_lets_others_run() -> None:
    def program(rank: int) -> bool:
        dist.init_process_group("sim")
        work = dist.all_reduce(torch.ones(1), async_op=True)
        assert work is not None
        while not work.is_completed():
            pass
        return True

    assert execute(program, 3).results == [True] * 3


def test_R19_a_rank_that_spins_without_asking_is_named_by_the_watchdog() -> None:
    def program(rank: int) -> None:
        dist.init_process_group("sim")
        while rank == 1:
            time.monotonic()

    with pytest.raises(SpawnException) as found:
        execute(program, 2, settings=Settings(limits=Limits(watchdog=0.2)))
    assert isinstance(found.value.errors[1], NonProgressError) and list(found.value.errors) == [1]
    assert "rank 1 ran 0.2 s without an event or a wait, at" in str(found.value) and "test_waiting.py:" in str(
        found.value
    )


def test_R20_every_blocking_primitive_of_torch_is_a_wait_point() -> None:
    """Work.wait, Store.get, Store.wait and torch's barrier over a store: each where the other rank is not there yet."""

    def program(rank: int) -> tuple[bytes, bytes]:
        dist.init_process_group("sim")
        store = distributed_c10d._get_default_store()
        if rank == 1:
            store.set("first", "1")
        first = store.get("first")
        if rank == 1:
            store.set("second", "2")
        store.wait(["second"])
        from datetime import timedelta

        distributed_c10d._store_based_barrier(rank, store, "own", 2, timedelta(seconds=5))  # type: ignore[arg-type]
        work = dist.all_reduce(torch.ones(1), async_op=True)
        assert work is not None and work.wait()
        return first, store.get("second")

    assert execute(program, 2).results == [(b"1", b"2")] * 2


def test_a_deadlock_is_named_with_who_waits_for_whom() -> None:
    def program(rank: int) -> None:
        dist.init_process_group("sim")
        x = torch.ones(1)
        dist.recv(x, 1 - rank)

    with pytest.raises(SpawnException) as found:
        execute(program, 2)
    assert list(found.value.errors) == [0, 1]
    for error in found.value.errors.values():
        assert isinstance(error, DeadlockError)
        for rank in (0, 1):
            assert f"rank {rank} waits for rank {1 - rank} in receive from rank {1 - rank}" in str(error)
        assert str(error).count("test_waiting.py:") == 2


def test_waiting_for_a_rank_that_has_ended_is_named() -> None:
    def program(rank: int) -> None:
        dist.init_process_group("sim")
        if rank:
            dist.all_reduce(torch.ones(1))

    with pytest.raises(SpawnException, match=r"rank 1 waits for rank 0 in all-reduce.*ended before: rank 0"):
        execute(program, 2)


def test_sends_meet_their_receives_as_gloos_do() -> None:
    """Two sends before two receives wait for each other: gloo does not buffer either."""

    def program(rank: int) -> None:
        dist.init_process_group("sim")
        x: Any = torch.ones(1)
        dist.send(x, 1 - rank)
        dist.recv(x, 1 - rank)

    with pytest.raises(SpawnException, match="rank 0 waits for rank 1 in send to rank 1"):
        execute(program, 2)


def test_the_main_context_waits_by_advancing_time_no_further_than_it_must() -> None:
    engine, handle, later = Engine(), Handle("a kernel"), Handle("a later one")
    engine.at(1.0, handle.complete)
    engine.at(2.0, later.complete)
    engine.run_until(handle)
    assert handle.done and not later.done and engine.now == 1.0
    engine.drain()
    with pytest.raises(DeadlockError, match="could complete nobody's"):
        engine.run_until(Handle("nobody's"))
