"""Spawn: torch's signature, root causes, siblings that end, and a process that can be used again afterwards."""

from __future__ import annotations

import inspect
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

from samebits.sim.cluster import execute
from samebits.sim.errors import SpawnException
from samebits.sim.scheduler import Scheduler
from samebits.sim.spawn import Context, spawn

shared: list[int] = []


def living_ranks() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("rank ")]


def reference(rank: int) -> list[float]:
    dist.init_process_group("sim")
    torch.manual_seed(rank)
    x = torch.randn(9)
    dist.all_reduce(x)
    return x.tolist()


def test_R25_the_signature_is_torchs() -> None:
    ours, torchs = (inspect.signature(each) for each in (spawn, torch.multiprocessing.spawn))
    assert [(each.name, each.default, each.kind) for each in ours.parameters.values()] == [
        (each.name, each.default, each.kind) for each in torchs.parameters.values()
    ]
    seen: list[tuple[int, str, int]] = []
    assert spawn(lambda i, *args: seen.append((i, *args)), args=("a", 7), nprocs=2) is None
    assert seen == [(0, "a", 7), (1, "a", 7)]


def test_R26_a_modules_globals_are_shared() -> None:
    """No isolation of processes, address spaces or failures: said, and so."""
    shared.clear()
    spawn(lambda rank: shared.append(rank), nprocs=3)
    assert shared == [0, 1, 2]


def test_R27_siblings_get_system_exit_at_their_next_wait_and_finally_blocks_run() -> None:
    ended: list[tuple[int, str]] = []

    def program(rank: int) -> None:
        dist.init_process_group("sim")
        try:
            dist.barrier()
            if rank == 1:
                raise ArithmeticError("the sum is odd")
            dist.barrier()
        except BaseException as error:
            ended.append((rank, type(error).__name__))
            raise
        finally:
            ended.append((rank, "finally"))

    with pytest.raises(SpawnException):
        execute(program, 3)
    assert sorted(ended) == [
        (0, "SystemExit"),
        (0, "finally"),
        (1, "ArithmeticError"),
        (1, "finally"),
        (2, "SystemExit"),
        (2, "finally"),
    ]


def test_R28_errors_are_root_causes_in_rank_order() -> None:
    """Ranks 2 and 0 fail in one round; rank 1 is ended for it, and not listed."""

    def program(rank: int) -> None:
        dist.init_process_group("sim")
        dist.barrier()
        if rank != 1:
            raise ValueError(f"of rank {rank}")
        dist.barrier()

    with pytest.raises(torch.multiprocessing.ProcessRaisedException) as found:
        execute(program, 3)
    assert isinstance(found.value, SpawnException)
    assert list(found.value.errors) == [0, 2] and found.value.error_index == 0
    assert [str(each) for each in found.value.errors.values()] == ["of rank 0", "of rank 2"]
    assert "rank 0: ValueError: of rank 0\nrank 2: ValueError: of rank 2" in str(found.value)
    assert "test_spawn.py" in str(found.value) and "SystemExit" not in str(found.value)


def test_R29_without_join_ranks_advance_only_inside_join() -> None:
    seen: list[int] = []

    def program(rank: int) -> None:
        dist.init_process_group("sim")
        for step in range(50):
            dist.barrier()
            if rank == 0:
                seen.append(step)

    context = spawn(program, nprocs=2, join=False)
    assert isinstance(context, Context) and not seen and not living_ranks()
    assert inspect.signature(context.join).parameters.keys() == {"timeout", "grace_period"}
    joined = context.join(timeout=0.0)
    part = len(seen)
    time.sleep(0.01)
    assert not joined and part < 50 and len(seen) == part
    while not context.join(timeout=0.005):
        assert not dist.is_initialized()
    assert seen == list(range(50)) and context.join()


def test_R29_no_thread_of_a_rank_outlives_the_run_however_late_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(scheduler: Scheduler) -> None:
        hand_back(scheduler)
        time.sleep(0.05)

    hand_back = Scheduler.hand_back
    monkeypatch.setattr(Scheduler, "hand_back", late)
    assert len(execute(reference, 3).results) == 3
    assert not living_ranks()


def test_R30_a_rank_that_swallows_system_exit_twice_is_abandoned_and_named() -> None:
    asked: list[int] = []

    def program(rank: int) -> None:
        dist.init_process_group("sim")
        if rank == 1:
            raise ArithmeticError("the sum is odd")
        for _ in range(10):
            try:
                dist.barrier()
            except SystemExit:
                asked.append(rank)

    with pytest.raises(SpawnException) as found:
        execute(program, 2)
    assert asked == [0, 0] and found.value.abandoned == (0,) and list(found.value.errors) == [1]
    assert "rank 0 swallowed SystemExit twice" in str(found.value)
    assert execute(reference, 2).results == execute(reference, 2).results


def test_R31_after_a_failure_the_next_spawn_gives_reference_bits() -> None:
    wanted = execute(reference, 3).results
    before = living_ranks()

    def program(rank: int) -> None:
        dist.init_process_group("sim")
        work = dist.all_reduce(torch.ones(3), async_op=True)
        if rank == 2:
            raise ArithmeticError("with work under way")
        assert work is not None
        work.wait()

    for _ in range(3):
        with pytest.raises(SpawnException):
            execute(program, 3)
        assert living_ranks() == before and not dist.is_initialized()
        assert execute(reference, 3).results == wanted


def test_exit_codes_of_ranks() -> None:
    """sys.exit() ends a rank well; sys.exit(3) is a failure, whose code is kept."""
    assert execute(lambda rank: exit_with(None), 2).results == [None, None]
    with pytest.raises(SpawnException) as found:
        execute(lambda rank: exit_with(3 if rank else 0), 2)
    error: Any = found.value.errors[1]
    assert list(found.value.errors) == [1] and error.code == 3


def exit_with(code: int | None) -> None:
    raise SystemExit(code)


@pytest.mark.parametrize("ranks", [0, -1, 1025])
def test_a_number_of_ranks_that_cannot_be_is_refused(ranks: int) -> None:
    with pytest.raises(ValueError, match=f"ranks must lie in 1..1024, got {ranks}"):
        spawn(reference, nprocs=ranks)
