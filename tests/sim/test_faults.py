"""Faults of ranks: crashes at every wait, stragglers, and collectives that one rank leaves out or swaps."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.sim.programs import digest, network, train
from torch.nn.parallel import DistributedDataParallel

from samebits.sim.choices import Uniform
from samebits.sim.cluster import Cluster, Settings, execute
from samebits.sim.errors import DeadlockError, InjectedCrashError, MismatchError, SpawnException
from samebits.sim.faults import Fault
from samebits.sim.rank import current


def ddp_step(rank: int) -> str:
    """One step with a group of its own: waits in the making of a group, in forward, in backward and after it."""
    # Of this rank's own environment: torch then waits for all members of a new group.
    os.environ["TORCH_DIST_INIT_BARRIER"] = "1"
    dist.init_process_group("sim")
    pair = dist.new_group([0, 1])
    model = network(8, 8)
    wrapped = DistributedDataParallel(model, process_group=pair)
    train(wrapped, rank, steps=1, width=8)
    dist.barrier()
    return digest(model.parameters())


def waits_of(program: Any, ranks: int) -> list[int]:
    cluster = Cluster(program, (), ranks, Settings())
    cluster.run()
    return [rank.waits for rank in cluster.ranks]


def test_F7_F9_a_crash_at_every_wait_of_a_program() -> None:
    """Inside the making of a group, inside backward, anywhere: only the crashed rank is listed, nobody is left running,
    and the next run in this process gives the reference bits."""
    wanted = execute(ddp_step, 2).results
    waits = waits_of(ddp_step, 2)
    before = {thread.ident for thread in threading.enumerate()}
    sites = set()
    for victim in range(2):
        for nth in range(1, waits[victim] + 1):
            with pytest.raises(SpawnException) as found:
                execute(ddp_step, 2, settings=Settings(faults=(Fault("crash", victim, nth),)))
            assert list(found.value.errors) == [victim] and not found.value.abandoned
            assert isinstance(found.value.errors[victim], InjectedCrashError)
            assert f"crash@{victim}:{nth}" in str(found.value)
            sites |= {word for word in ("new_group", "run_backward") if word in found.value.told[victim]}
            assert {thread.ident for thread in threading.enumerate()} <= before
            assert not dist.is_initialized()
        assert execute(ddp_step, 2).results == wanted
    assert sites == {"new_group", "run_backward"} and min(waits) > 5


def test_F8_two_ranks_that_crash_in_one_round_are_both_listed() -> None:
    def program(rank: int) -> None:
        dist.init_process_group("sim")
        for _ in range(3):
            dist.barrier()

    plan = (Fault("crash", 2, 2), Fault("crash", 0, 2))
    with pytest.raises(SpawnException) as found:
        execute(program, 3, settings=Settings(faults=plan))
    assert list(found.value.errors) == [0, 2]


def computing(rank: int) -> list[float]:
    """Each rank computes for a simulated second a step; four sums."""
    dist.init_process_group("sim")
    own = current()
    assert own is not None
    x = torch.arange(4.0) + rank
    for _ in range(4):
        own.elapse(1.0)
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
    return x.tolist()


def test_F10_a_straggler_changes_times_and_no_bits_and_is_named() -> None:
    plain = execute(computing, 3)
    late = execute(computing, 3, settings=Settings(faults=(Fault("late", 1, 1, 0.25),)))
    slow = execute(computing, 3, settings=Settings(faults=(Fault("slow", 2, 1, 3.0),)))
    assert plain.results == late.results == slow.results
    assert plain.clocks == [4.0] * 3 and late.clocks == [4.25] * 3 and slow.clocks == [1.0 + 3 * 3.0] * 3
    assert plain.journal.critical() == [] and late.journal.critical() == [1] and slow.journal.critical() == [2, 2, 2]


def different(rank: int) -> None:
    dist.init_process_group("sim")
    works = [
        dist.all_reduce(torch.ones(4), async_op=True),
        dist.all_reduce(torch.ones(5), async_op=True),
        dist.broadcast(torch.ones(2), 0, async_op=True),
    ]
    for work in works:
        assert work is not None
        work.wait()


@pytest.mark.parametrize("kind", ["skip", "swap"])
@pytest.mark.parametrize("policy", [None, Uniform(4, 3)])
def test_F11_a_collective_that_one_rank_skips_or_swaps_is_told_to_every_member(kind: str, policy: Any) -> None:
    with pytest.raises(SpawnException) as found:
        execute(different, 3, settings=Settings(faults=(Fault(kind, 1, 1),), policy=policy))
    assert list(found.value.errors) == [0, 1, 2]
    assert all(isinstance(error, MismatchError) for error in found.value.errors.values())
    assert f"{kind}@1:1" in str(found.value) and "float32[4]" in str(found.value) and "float32[5]" in str(found.value)


def test_F11_a_skipped_last_collective_leaves_the_others_waiting_and_is_named() -> None:
    def program(rank: int) -> None:
        dist.init_process_group("sim")
        for _ in range(2):
            dist.all_reduce(torch.ones(4))

    with pytest.raises(SpawnException) as found:
        execute(program, 3, settings=Settings(faults=(Fault("skip", 1, 2),)))
    assert list(found.value.errors) == [0, 2]
    assert all(isinstance(error, DeadlockError) for error in found.value.errors.values())
    assert "rank 0 waits for rank 1 in all-reduce" in str(found.value) and "skip@1:2" in str(found.value)


def test_an_empty_plan_changes_nothing() -> None:
    plain, planned = (execute(computing, 3, settings=Settings(faults=plan)) for plan in ((), (Fault("crash", 0, 999),)))
    assert (plain.results, plain.clocks, plain.trace.key) == (planned.results, planned.clocks, planned.trace.key)


@pytest.mark.parametrize("text", ["crash@1:3", "late@2:1:0.25", "slow@0:1:2", "skip@0:4", "swap@3:2"])
def test_a_plan_is_text(text: str) -> None:
    assert str(Fault.read(text)) == text


@pytest.mark.parametrize(
    "text", ["crash", "crash@x:1", "crash@0:0", "late@0:1", "crash@0:1:2", "burn@0:1", "late@0:1:1e9"]
)
def test_a_plan_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="allowed"):
        Fault.read(text)
