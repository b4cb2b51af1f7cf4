"""Digests of what ranks return and bring: nothing that differs is left out, nothing that says nothing comes in."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from samebits.sim.cluster import execute
from samebits.sim.explore import Program, explore
from samebits.sim.results import digest_of_result


@dataclass(slots=True)
class Pair:
    weight: torch.Tensor
    loss: float


class Plain:
    def __init__(self, loss: float) -> None:
        self.loss, self.itself = loss, self


def array(value: float) -> np.ndarray:
    return np.where(np.arange(5000) == 2500, value, 0.0)


KINDS = [
    lambda value: {"weight": torch.ones(3), "loss": value},
    lambda value: [torch.ones(3), (value, "loss")],
    lambda value: {("loss", value), torch.ones},
    lambda value: Pair(torch.ones(3), value),
    lambda value: Plain(value),
    lambda value: array(value),
    lambda value: [array(value).astype(object)],
    lambda value: torch.full((2, 3), value).to_sparse(),
    lambda value: torch.full((3,), value * 1j).conj(),
    lambda value: torch.full((2,), value)[::2],
    lambda value: torch.optim.SGD([torch.ones(1)], lr=value),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_number_beside_or_inside_counts_and_an_address_does_not(kind: Any) -> None:
    assert digest_of_result(kind(1.5)) == digest_of_result(kind(1.5)) != digest_of_result(kind(2.5))


def test_what_has_no_value_of_its_own_is_the_same_each_time() -> None:
    for make in (lambda: iter([1]), lambda: lambda: 1, lambda: torch.ones(3, device="meta"), lambda: {"b", "a"}):
        assert digest_of_result(make()) == digest_of_result(make())
    assert (digest_of_result(None), digest_of_result(2.5), digest_of_result("x")) == ("None", "2.5", "'x'")


def test_a_dtensor_is_the_part_that_a_rank_holds() -> None:
    def program(rank: int) -> Any:
        dist.init_process_group("gloo")
        return distribute_tensor(torch.arange(8.0).view(4, 2), init_device_mesh("cpu", (2,)), [Shard(0)])

    ours = [digest_of_result(each) for each in execute(program, 2).results]
    assert ours == [digest_of_result(torch.arange(8.0).view(4, 2)[part]) for part in (slice(2), slice(2, 4))]


seen: list[int] = []


def racing_beside_a_tensor(rank: int) -> Any:
    if rank == 0:
        seen.clear()
    dist.init_process_group("gloo")
    dist.barrier()
    seen.append(rank)
    dist.barrier()
    return {"weight": torch.ones(3), "first": seen[0]}


def receiving_into_fresh_memory(rank: int) -> Any:
    """What a broadcast's other ranks bring is nothing, whatever their memory held before."""
    dist.init_process_group("gloo")
    x = torch.arange(64.0) if rank == 0 else torch.full((64,), float(time.perf_counter_ns() % 1009))
    dist.broadcast(x, src=0)
    return x


def test_a_race_that_shows_in_a_number_alone_is_found() -> None:
    found = explore(Program(racing_beside_a_tensor, 3), range(20), shrink=False).finding
    assert found is not None and "returned other bits" in found.why


def test_what_a_broadcast_overwrites_is_no_race() -> None:
    assert explore(Program(receiving_into_fresh_memory, 3), range(10)).holds
