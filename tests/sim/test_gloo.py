"""The virtual cluster against real gloo processes: every collective and whole programs, on every rank, bit for bit."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.parallel.ranks import on_ranks
from tests.sim import own_trainer
from tests.sim.collectives import all_collectives
from tests.sim.programs import torch_programs

from samebits.parallel.world import World
from samebits.sim.calls import Algorithms
from samebits.sim.choices import Uniform
from samebits.sim.cluster import Settings, execute
from samebits.sim.group import SimGroup
from samebits.sim.network import Parts
from samebits.sim.ring import gloo_rooted_ring, ring
from samebits.sim.trees import tree

LARGE_AT = 3

TRAINED = [pytest.param(ranks, marks=pytest.mark.long if ranks == 8 else ()) for ranks in own_trainer.GRIDS]


def everything(ranks: int) -> dict[str, Any]:
    found: dict[str, Any] = {"collectives": all_collectives(with_large=ranks == LARGE_AT)}
    if ranks in own_trainer.GRIDS:
        found["programs"] = torch_programs()
    return found


def on_gloo_rank(world: World) -> dict[str, Any]:
    found = everything(world.size)
    if world.size in own_trainer.GRIDS:
        found["trainer"] = own_trainer.train(world, own_trainer.GRIDS[world.size][0], 3)
    return found


@cache
def on_gloo(ranks: int) -> list[dict[str, Any]]:
    return on_ranks(ranks, on_gloo_rank)


def on_sim_rank(rank: int, ranks: int) -> dict[str, Any]:
    dist.init_process_group("gloo")
    return everything(ranks)


@cache
def on_sim(ranks: int) -> list[dict[str, Any]]:
    return execute(on_sim_rank, ranks, (ranks,)).results


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, pytest.param(8, marks=pytest.mark.long)])
def test_every_collective_has_gloos_bits(ranks: int) -> None:
    """Sums in four formats and seven sizes, other operators, NaN and signed zeros; what only moves; messages."""
    for rank, (gloo, sim) in enumerate(zip(on_gloo(ranks), on_sim(ranks), strict=True)):
        assert sim["collectives"] == gloo["collectives"], f"rank {rank}"


@pytest.mark.parametrize("ranks", TRAINED)
def test_R51_three_steps_of_ddp_fsdp_and_dtensor_have_gloos_bits(ranks: int) -> None:
    """sha256 of every parameter after three steps of DDP (with dropout too), FSDP2 and DTensor TP, unmodified."""
    for gloo, sim in zip(on_gloo(ranks), on_sim(ranks), strict=True):
        assert sim["programs"] == gloo["programs"]
    assert len(on_gloo(ranks)[0]["programs"]) == 4


def test_a_rank_begins_as_a_new_process_does_whatever_torch_switched_off_in_this_one() -> None:
    """A bfloat16 product on some ARM CPUs ends torch's use of oneDNN, and float32 products have other bits after it."""
    torch._C._set_mkldnn_enabled(False)
    try:
        assert execute(lambda rank: torch._C._get_mkldnn_enabled(), 2).results == [True, True]
        assert execute(on_sim_rank, 2, (2,)).results[0]["programs"] == on_gloo(2)[0]["programs"]
        assert not torch._C._get_mkldnn_enabled()
    finally:
        torch._C._set_mkldnn_enabled(True)


@pytest.mark.parametrize("ranks", TRAINED)
def test_three_steps_of_our_trainer_have_gloos_bits(ranks: int) -> None:
    """Tensor x data parallel; the first rank's digest, of all weights, is the same for every number of ranks."""
    tensor = own_trainer.GRIDS[ranks][0]
    found = execute(own_trainer.simulated, ranks, (tensor, 3)).results
    assert found == [each["trainer"] for each in on_gloo(ranks)]
    assert found[0] == on_gloo(2)[0]["trainer"]


def collectives_at(ranks: int, settings: Settings, with_large: bool = False) -> list[dict[str, str]]:
    def program(rank: int) -> dict[str, str]:
        dist.init_process_group("gloo")
        return all_collectives(with_large)

    return execute(program, ranks, settings=settings).results


def test_E3_other_schedules_have_gloos_bits_too() -> None:
    wanted = [each["collectives"] for each in on_gloo(4)]
    for seed in range(3):
        assert collectives_at(4, Settings(policy=Uniform(seed, 4))) == wanted


@pytest.mark.parametrize("other", [ring, tree])
def test_E5_another_order_of_addition_is_noticed(other: Any) -> None:
    """Planted fault: a plain ring, a tree. Not with two ranks, whose additions commute."""
    found = collectives_at(4, Settings(parts=Parts(algorithms=Algorithms(all_reduce=other))))
    assert found[0]["all_reduce torch.float64 1000"] != on_gloo(4)[0]["collectives"]["all_reduce torch.float64 1000"]


def test_E5_the_rooted_cut_on_a_large_all_reduce_is_noticed() -> None:
    """Planted fault: up to 2 W MiB both cuts agree; beyond it the wrong one gives other bits."""
    found = collectives_at(LARGE_AT, Settings(parts=Parts(algorithms=Algorithms(all_reduce=gloo_rooted_ring))), True)
    gloo = on_gloo(LARGE_AT)[0]["collectives"]
    assert found[0]["all_reduce torch.float32 70001"] == gloo["all_reduce torch.float32 70001"]
    assert found[0]["all_reduce large"] != gloo["all_reduce large"]


def test_both_sets_of_method_names_are_there() -> None:
    """torch 2.11 and 2.12 call the first of each pair, 2.13 and later the second."""
    for old, new in (
        ("_allgather_base", "all_gather_single"),
        ("_reduce_scatter_base", "reduce_scatter_single"),
        ("alltoall_base", "all_to_all_single"),
        ("allgather_into_tensor_coalesced", "all_gather_single_coalesced"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"),
    ):
        assert vars(SimGroup)[old] is vars(SimGroup)[new]
    both = {
        "allreduce",
        "allreduce_coalesced",
        "broadcast",
        "reduce",
        "allgather",
        "allgather_coalesced",
        "gather",
        "scatter",
        "reduce_scatter",
        "alltoall",
        "send",
        "recv",
        "recv_anysource",
        "barrier",
    }
    assert both <= vars(SimGroup).keys()
