"""Ranks: who they are, what they own, and how they match in collectives. Numbers are those of the specification."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from samebits.sim import ahbm
from samebits.sim.choices import Uniform
from samebits.sim.cluster import Settings, execute
from samebits.sim.errors import CollectiveTimeoutError, MismatchError, SpawnException
from samebits.sim.faults import Fault
from samebits.sim.identity import WorldSize, get_rank, get_world_size, installed
from samebits.sim.random_state import SharedStreams
from samebits.sim.rank import current

ROOT = Path(__file__).resolve().parents[2]


def started() -> int:
    dist.init_process_group("sim")
    return dist.get_rank()


def test_R1_the_world_is_the_topology_unless_an_entry_or_the_defaults_say_otherwise() -> None:
    assert WorldSize(topology=6).resolved == 6
    assert WorldSize(topology=6, defaults=4).resolved == 4
    assert WorldSize(topology=6, defaults=4, algorithm=2).resolved == 2
    with pytest.raises(ValueError, match="algorithm is 7; allowed: 1 to 6"):
        WorldSize(topology=6, algorithm=7)
    assert execute(lambda rank: get_world_size(), 3).results == [3, 3, 3]


def test_R2_a_rank_is_asked_of_the_running_workers_own_record() -> None:
    def program(rank: int) -> tuple[int, int, int]:
        started()
        dist.barrier()
        return get_rank(), dist.get_rank(), int(os.environ["RANK"])

    found = execute(program, 3, settings=Settings(policy=Uniform(1, 3))).results
    assert found == [(rank, rank, rank) for rank in range(3)]
    assert get_rank() == 0
    with installed(WorldSize(topology=2)), pytest.raises(RuntimeError, match="none of the 2 ranks"):
        get_rank()


def test_R3_set_device_alone_decides_where_a_new_tensor_lands() -> None:
    def program(rank: int) -> list[int]:
        before = ahbm.landed(torch.zeros(1))
        ahbm.set_device(rank)
        return [ahbm.device_of(before), ahbm.device_of(ahbm.landed(torch.zeros(1))), ahbm.current_device()]

    assert execute(program, 3).results == [[0, rank, rank] for rank in range(3)]
    for index in (-1, 1):
        with pytest.raises(ValueError, match=f"device is {index}; allowed: 0 to 0"):
            ahbm.set_device(index)
    sources = (ROOT / "src" / "samebits" / "sim").glob("*.py")
    assert not [file.name for file in sources if "torch.cuda" in file.read_text()]


def test_R5_nobody_starts_a_collective_before_all_have_entered_the_one_before() -> None:
    """Skewed ranks, two overlapping groups, every collective asynchronous."""

    def program(rank: int) -> None:
        started()
        groups = [dist.new_group([0, 1, 2]), dist.new_group([1, 2, 3])]
        works = [
            dist.all_reduce(torch.ones(4), group=group, async_op=True)
            for _ in range(3)
            for group in groups
            if dist.get_rank(group) >= 0
        ]
        for work in works:
            assert work is not None
            work.wait()

    for seed in range(5):
        journal = execute(program, 4, settings=Settings(policy=Uniform(seed, 4))).journal
        complete = list(journal.entries)
        for group, sequence, rank in complete:
            if sequence > 1:
                before = [each for each in journal.entered if each[:2] == (group, sequence - 1)]
                assert len(before) == 3 and complete.index((group, sequence - 1, rank)) < complete.index(
                    (group, sequence, rank)
                )


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ((lambda: dist.all_reduce(torch.ones(4)), lambda: dist.broadcast(torch.ones(4), 0)), ("broadcast",)),
        ((lambda: dist.all_reduce(torch.ones(4)), lambda: dist.all_reduce(torch.ones(4).double())), ("float64",)),
        ((lambda: dist.all_reduce(torch.ones(4)), lambda: dist.all_reduce(torch.ones(5))), ("[4]", "[5]")),
        (
            (lambda: dist.all_reduce(torch.ones(4)), lambda: dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX)),
            ("SUM", "MAX"),
        ),
    ],
    ids=["operation", "dtype", "shape", "reduce operator"],
)
def test_R9_a_mismatch_raises_on_every_member_and_names_both_call_sites(calls: Any, words: tuple[str, ...]) -> None:
    def program(rank: int) -> None:
        started()
        calls[rank == 1]()

    for policy in (None, Uniform(3, 3)):
        with pytest.raises(SpawnException) as found:
            execute(program, 3, settings=Settings(policy=policy))
        assert list(found.value.errors) == [0, 1, 2]
        for error in found.value.errors.values():
            assert isinstance(error, MismatchError)
            assert str(error).count("test_ranks.py:") == 2 and all(word in str(error) for word in words)


def test_R10_a_collective_that_takes_longer_than_its_group_allows_raises_in_simulated_time() -> None:
    """The group's timeout is simulated: an hour passes in no time. The watchdog is the wall clock's: R19."""
    from datetime import timedelta

    def program(rank: int) -> None:
        dist.init_process_group("sim", timeout=timedelta(seconds=1800))
        dist.barrier()
        dist.all_reduce(torch.ones(1))

    late = Settings(faults=(Fault("late", 1, 1, 3600.0),))
    with pytest.raises(SpawnException) as found:
        execute(program, 2, settings=late)
    assert list(found.value.errors) == [0, 1]
    (message,) = {str(error) for error in found.value.errors.values()}
    assert isinstance(found.value.errors[0], CollectiveTimeoutError)
    assert "rank 0 waited 3600 s of simulated time, at most 1800" in message and "late@1:1:3600" in message


def test_R11_void_decisions_are_named_as_void() -> None:
    assert "ADR-0024 D7, D12 and D13" in (ROOT / "docs" / "sim.md").read_text()


def test_a_rank_has_its_own_environment() -> None:
    def program(rank: int) -> tuple[str, str, bool, str]:
        os.environ["OWN"] = f"of {rank}"
        started()
        dist.barrier()
        own = os.environ["OWN"]
        del os.environ["OWN"]
        return own, os.environ["LOCAL_RANK"], "OWN" in os.environ, os.environ.get("WORLD_SIZE", "")

    found = execute(program, 2, settings=Settings(policy=Uniform(0, 2))).results
    assert found == [(f"of {rank}", str(rank), False, "2") for rank in range(2)]
    assert "OWN" not in os.environ and "WORLD_SIZE" not in os.environ


def draws(rank: int) -> list[Any]:
    """Every generator, between waits: normal deviates of numpy come in pairs, of which one is kept."""
    started()
    torch.manual_seed(rank)
    random.seed(rank)
    np.random.seed(rank)
    found = []
    for _ in range(4):
        found += [torch.rand(1).item(), random.random(), random.gauss(0, 1), float(np.random.randn())]
        dist.barrier()
    return found


def test_a_rank_draws_from_its_own_random_streams() -> None:
    alone = [execute(draws_of, 1, (rank,)).results[0] for rank in range(3)]
    for seed in range(5):
        assert execute(draws, 3, settings=Settings(policy=Uniform(seed, 3))).results == alone


def draws_of(_: int, rank: int) -> list[Any]:
    return draws(rank)


def test_the_callers_random_states_are_left_alone() -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index, union-attr]
    execute(draws, 2)
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()
    assert before[2] == np.random.get_state()[1].tolist()  # type: ignore[index, union-attr]


def test_E5_unsaved_random_states_are_noticed() -> None:
    """Planted fault: all ranks draw from one stream."""
    reference = execute(draws, 3).results
    faulty = [
        execute(draws, 3, settings=Settings(policy=Uniform(seed, 3), streams=SharedStreams)).results
        for seed in range(20)
    ]
    assert any(each != reference for each in faulty)


def test_what_a_rank_owns_is_gone_after_the_run() -> None:
    hook = sys.excepthook
    execute(lambda rank: started(), 2)
    assert sys.excepthook is hook
    assert not dist.is_initialized() and current() is None


def test_several_runs_at_once_are_refused() -> None:
    def nested(rank: int) -> None:
        from samebits.sim.spawn import spawn

        spawn(draws, nprocs=2)

    with pytest.raises(SpawnException, match="may not spawn another cluster"):
        execute(nested, 1)


def test_the_simulated_transport_outside_of_the_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that never started one."""
    from samebits.parallel.world import join

    monkeypatch.setattr(dist.Backend, "_plugins", {})
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1"),
                        ("SAMEBITS_TRANSPORT", "sim")):  # fmt: skip
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="SAMEBITS_TRANSPORT is 'sim' outside of the virtual cluster; allowed: gloo"):
        join()
