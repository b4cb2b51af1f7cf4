"""Long sweeps of the virtual accelerator: thousands of seeds and faults through queues, rings of 16,384 ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from samebits.sim.accelerator import QUEUES, accelerator, machine_of
from samebits.sim.ipcq_faults import FaultPlan
from samebits.sim.kernels import IpcqDeadlock
from samebits.sim.ring import ring
from samebits.sim.schedule import LinkClass
from samebits.sim.schedule_kernel import neighbours_of, run_schedule
from samebits.sim.timing import finish_times, ring_all_reduce
from samebits.sim.topology import Link
from samebits.sim.trees import hierarchical

SCHEDULE = hierarchical(300, sips=(2, 2), cubes=(2, 2), pes=2)
MACHINE = accelerator(4, cube_mesh=(2, 2), pes=2)


def values(rank: int) -> np.ndarray:
    return np.random.default_rng(rank).standard_normal(300).astype(np.float32)


def ran(seed: int, kinds: tuple[str, ...]) -> tuple[bytes, ...]:
    channels = [(place, name) for place, queues in neighbours_of(SCHEDULE, MACHINE).items() for name in queues]
    faults = FaultPlan.drawn(seed, channels, kinds, count=3, messages=4, amount=2e-6) if kinds else FaultPlan()
    settings = replace(QUEUES, jitter=500e-9, slots=1 + seed % 4)
    machine = machine_of(MACHINE, settings, faults=faults, seed=seed)
    return tuple(each.tobytes() for each in run_schedule(machine, SCHEDULE, values)[1])


@pytest.mark.parametrize("block", range(10))
def test_a_thousand_seeds_leave_the_bits(block: int) -> None:
    """Events of one instant, delays and duplicates drawn; one hash for all, on every PE."""
    reference = ran(0, ())
    assert len(set(reference)) == 1
    for seed in range(100 * block, 100 * (block + 1)):
        assert ran(seed, ("delay", "duplicate")) == reference, seed


def test_losses_end_in_a_named_deadlock_or_in_the_right_bits() -> None:
    reference, deadlocks = ran(0, ()), 0
    for seed in range(300):
        try:
            assert ran(seed, ("lose", "reorder", "lose_credit")) == reference, seed
        except IpcqDeadlock as error:
            deadlocks += 1
            assert "injected: " in str(error), seed
    assert deadlocks > 100


def test_16384_ranks_equal_the_closed_form() -> None:
    link = Link(2e-6, 200e9)
    finish = finish_times(ring(16384, 16384), {LinkClass.SIP: link}).max()
    assert finish == pytest.approx(ring_all_reduce(4 * 16384, 16384, link), rel=1e-12)
