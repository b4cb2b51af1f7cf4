"""Ten thousand schedules of our tensor x data parallel step: one hash, and every schedule another."""

from __future__ import annotations

import pytest
from tests.sim.own_trainer import faulty_step, simulated_step

from samebits.sim.explore import Program, explore, replay

SEEDS = 10_000
POLICIES = ("uniform", "priority", "starve")


@pytest.mark.parametrize("share", range(10))
def test_E6_ten_thousand_schedules_of_our_step_have_one_hash(share: int) -> None:
    """2 x 2 ranks; each seed under one policy, the policies in turn."""
    runs = 0
    schedules: set[tuple[int, ...]] = set()
    hashes: set[tuple[str, ...]] = set()
    for place, policy in enumerate(POLICIES):
        seeds = [seed for seed in range(share * SEEDS // 10, (share + 1) * SEEDS // 10) if seed % 3 == place]
        found = explore(Program(simulated_step, 4, (2,)), seeds, (policy,))
        assert found.holds, found.finding
        runs += found.runs
        schedules |= found.schedules
        hashes |= found.hashes
    assert runs == SEEDS // 10 and len(hashes) == 1
    assert len(schedules) >= 0.99 * runs


def test_E3_gradients_added_on_arrival_are_found_minimised_and_replayed() -> None:
    """Planted in our own data-parallel step: in under 1,000 schedules, down to a handful of choices."""
    program = Program(faulty_step, 4)
    found = explore(program, range(1000))
    finding = found.finding
    assert not found.reference.error and finding is not None and found.runs < 1000
    assert 1 <= len(finding.choices) <= 5 < len(finding.trace.split())
    assert "own_trainer.py" in finding.races, "the loop that adds is named"
    again = replay(program, finding.smallest)
    assert again.digests != found.reference.digests
    assert found.reference.journal.difference(again.journal) == finding.difference
