"""Kernels of ranks that really run take their roofline's time, and keep their bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from tests.sim.programs import ddp

from samebits.sim.cluster import Settings, execute
from samebits.sim.faults import Fault
from samebits.sim.gpus import H100
from samebits.sim.network import Parts
from samebits.sim.op_clock import counted
from samebits.sim.run_timing import clocked
from samebits.sim.schedule import LinkClass
from samebits.sim.topology import Link

DEVICE = replace(H100, launch=1e-6)


def products(rank: int, size: int) -> torch.Tensor:
    a = torch.ones(size, size)
    return (a @ a).view(-1)[::2].reshape(-1)


def clock(size: int, **changes: float) -> float:
    settings = Settings(around=counted(replace(DEVICE, **changes)))  # type: ignore[arg-type]
    return execute(products, 1, (size,), settings=settings).clocks[0]


def test_a_product_takes_its_flops_or_its_bytes() -> None:
    """Twice the size is eight times the FLOPs where these bind, and four times the bytes where those do."""
    slow, narrow = {"gemm_efficiency": 1e-9, "launch": 0.0}, {"memory_efficiency": 1e-9, "launch": 0.0}
    assert clock(64, **slow) / clock(32, **slow) == pytest.approx(8, rel=0.05)
    assert clock(64, **narrow) / clock(32, **narrow) == pytest.approx(4, rel=0.05)
    peak = DEVICE.flops["float32"] * 1e-9
    assert clock(64, **slow) == pytest.approx(2 * 64**3 / peak, rel=0.05)


def test_views_are_free_and_kernels_have_a_launch() -> None:
    def views(rank: int) -> None:
        torch.ones(8, 8).view(-1).view(4, 16).t()

    counted_ones = execute(views, 1, settings=Settings(around=counted(DEVICE))).clocks[0]
    assert DEVICE.launch < counted_ones < 2 * DEVICE.launch


def program(rank: int) -> str:
    dist.init_process_group("sim")
    return ddp()


def test_a_whole_program_has_clocks_and_the_same_bits() -> None:
    links = Parts(timing=clocked({LinkClass.SIP: Link(2e-6, 10e9)}))
    plain = execute(program, 3)
    messages = execute(program, 3, settings=Settings(parts=links))
    both = execute(program, 3, settings=Settings(parts=links, around=counted(DEVICE)))
    assert plain.results == messages.results == both.results
    assert 0.0 == max(plain.clocks) < max(messages.clocks) < max(both.clocks)


def test_F10_a_slow_rank_is_slow_by_its_factor() -> None:
    faults = (Fault.read("slow@0:1:3"),)

    def computes(rank: int) -> None:
        dist.init_process_group("sim")
        dist.barrier()
        products(rank, 64)

    usual, slow = (
        execute(computes, 2, settings=Settings(around=counted(DEVICE), faults=chosen)).clocks for chosen in ((), faults)
    )
    assert slow[0] == pytest.approx(3 * usual[0], rel=1e-6) and slow[1] == pytest.approx(usual[1], rel=1e-6)


def test_a_peak_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="H100 80GB: dtype is 'float8'; allowed: bfloat16, float32"):
        counted(H100, "float8")
