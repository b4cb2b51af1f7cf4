"""The adversary: seeds and traces that repeat, what it finds, how small it gets, and that it finds what is planted."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.sim import own_trainer
from tests.sim.programs import torch_programs

from samebits.sim.choices import POLICIES, picks_of, policy_of, text_of
from samebits.sim.cluster import Settings, execute
from samebits.sim.errors import SpawnException
from samebits.sim.exhaustive import schedules
from samebits.sim.explore import Program, explore, reference_of, replay, run_once
from samebits.sim.network import Members, Parts, in_arrival_order
from samebits.sim.random_state import SharedStreams
from samebits.sim.rank import current
from samebits.sim.shrink import smallest

FAULTY = Settings(parts=Parts(order=in_arrival_order))
ALL = ("uniform", "priority", "starve")


def summing(rank: int) -> torch.Tensor:
    """Six averages of numbers that tell orders of addition apart."""
    dist.init_process_group("gloo")
    x = torch.randn(16, generator=torch.Generator().manual_seed(rank))
    for _ in range(6):
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
        x = torch.sin(x * (rank + 3))
    return x


def dropping(rank: int) -> torch.Tensor:
    dist.init_process_group("gloo")
    x = torch.ones(8)
    for _ in range(4):
        x = torch.nn.functional.dropout(x, 0.4)
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
    return x


def failing(rank: int) -> None:
    dist.init_process_group("gloo")
    dist.barrier()
    dist.recv(torch.ones(1), (rank + 1) % dist.get_world_size())


@pytest.mark.parametrize("policy", POLICIES)
def test_E1_a_seed_repeats_choices_bits_times_and_errors(policy: str) -> None:
    for function in (summing, failing):
        one, other = (run_once(Program(function, 3), policy_of(policy, 11, 3), Settings()) for _ in range(2))
        assert one == other and (one.error == "") == (function is summing)


def test_E1_a_run_repeats_from_its_trace_as_from_its_seed() -> None:
    program = Program(summing, 4)
    seen = run_once(program, policy_of("uniform", 5, 4), Settings())
    again = replay(program, seen.trace.text)
    assert again.trace.key == seen.trace.key and again.digests == seen.digests and again.clocks == seen.clocks


def test_E2_policies_differ_and_the_starved_rank_comes_last() -> None:
    keys = {name: run_once(Program(summing, 3), policy_of(name, 1, 3), Settings()).trace.key for name in ALL}
    assert len(set(keys.values())) == 3
    starved = run_once(Program(summing, 3), policy_of("starve", 1, 3), Settings()).trace
    assert all(
        choice.alternatives[choice.index].actor != 1
        for choice in starved.made
        if {each.actor for each in choice.alternatives} != {1}
    )
    with pytest.raises(ValueError, match="policy is 'best'; allowed: fifo, uniform, priority, starve"):
        policy_of("best", 0, 2)


def one_sum(rank: int) -> torch.Tensor:
    dist.init_process_group("sim")
    x = torch.randn(8, generator=torch.Generator().manual_seed(rank))
    dist.all_reduce(x)
    return x


def test_E2_every_schedule_of_a_tiny_program_without_those_that_only_swap_strangers() -> None:
    few, all_of_them = (list(schedules(Program(one_sum, 2), reduce=reduce)) for reduce in (True, False))
    assert len(few) < len(all_of_them) / 5
    assert {seen.digests for seen in few} == {seen.digests for seen in all_of_them} and len({few[0].digests}) == 1
    orders = {seen.digests for seen in schedules(Program(one_sum, 3), FAULTY)}
    assert len(orders) == 6, "an order-dependent sum of three ranks has six results, and all of them are found"
    with pytest.raises(ValueError, match="more than 3 schedules"):
        list(schedules(Program(one_sum, 3), most=3))


def test_E2_a_failing_trace_is_cut_down_to_what_matters() -> None:
    """Fails where both 3 and 40 are kept; the rest of a hundred choices is noise."""
    picks = dict.fromkeys(range(100), 1)
    few, runs = smallest(picks, lambda tried: {3, 40} <= set(tried), 200)
    assert few == {3: 1, 40: 1} and runs < 100
    assert picks_of(text_of(few)) == few and picks_of("fifo") == {}
    with pytest.raises(ValueError, match="a trace is"):
        picks_of("3;1")


def test_E3_a_planted_order_dependent_sum_is_found_minimised_and_replayed() -> None:
    """In under 1,000 schedules; the first differing collective is named; a handful of choices is left."""
    program = Program(summing, 4)
    found = explore(program, range(1000), settings=FAULTY)
    finding = found.finding
    assert finding is not None and found.runs < 1000
    assert "all-reduce" in finding.why and "same bits in, other bits out" in finding.why and not finding.races
    assert "test_explore.py:" in finding.why and finding.difference is not None
    assert 1 <= len(finding.choices) <= 5 < len(finding.trace.split())
    again = replay(program, finding.smallest, FAULTY)
    assert again.digests != found.reference.digests
    assert found.reference.journal.difference(again.journal) == finding.difference
    assert replay(program, finding.smallest).digests == reference_of(program).digests, "without the fault it holds"


def test_E4_schedules_of_long_programs_are_distinct() -> None:
    found = explore(Program(summing, 8), range(30))
    assert found.holds and found.hand_offs / found.runs > 100
    assert len(found.schedules) >= 0.99 * found.runs


def test_E5_every_planted_defect_is_caught_within_20_seeds() -> None:
    for function, settings in ((summing, FAULTY), (dropping, Settings(streams=SharedStreams))):
        assert explore(Program(function, 3), range(20)).holds
        assert not explore(Program(function, 3), range(20), settings=settings, shrink=False).holds


def test_E6_schedules_of_our_tensor_and_data_parallel_step_have_one_hash() -> None:
    """2 x 2 ranks, a whole step of the trainer; `tests/long` has ten thousand."""
    found = explore(Program(own_trainer.simulated_step, 4, (2,)), range(7), ALL)
    assert found.holds and found.runs == 21 and len(found.schedules) == 21 and len(found.hashes) == 1


def test_E6_schedules_of_ddp_fsdp_and_dtensor_have_one_hash() -> None:
    def program(rank: int) -> Any:
        dist.init_process_group("gloo")
        return torch_programs()

    found = explore(Program(program, 3), range(2))
    assert found.holds and found.runs == 2 and len(found.schedules) == 2 and len(found.hashes) == 1


box: dict[str, int] = {}


def racing_on_a_global(rank: int) -> torch.Tensor:
    dist.init_process_group("gloo")
    dist.barrier()
    box["last"] = rank
    dist.barrier()
    x = torch.tensor([float(box["last"])])
    dist.all_reduce(x)
    return x


def receiving_from_any(rank: int) -> torch.Tensor:
    dist.init_process_group("gloo")
    x = torch.tensor([float(rank)])
    if rank:
        dist.send(x, 0)
        return x
    got = [torch.zeros(1), torch.zeros(1)]
    for each in got:
        dist.recv(each)
    return torch.cat(got)


def test_E7_a_program_that_races_by_itself_is_said_to_with_both_events() -> None:
    shared = explore(Program(racing_on_a_global, 3), range(100)).finding
    assert shared is not None and "brought other bits" in shared.why
    assert shared.races.startswith("the program races by itself: rank") and shared.races.count("test_explore.py:") == 2
    any_source = explore(Program(receiving_from_any, 3), range(100)).finding
    assert any_source is not None and "received from rank 1 in one run and from rank 2" in any_source.why
    assert "rank 1's message and rank 2's are both on their way" in any_source.races


ticks = itertools.count()
kept: list[int] = []


def reading_a_clock(rank: int) -> torch.Tensor:
    dist.init_process_group("gloo")
    x = torch.tensor([float(next(ticks))])
    dist.all_reduce(x)
    return x


def keeping_a_list(rank: int) -> int:
    """Every collective gives the same; what comes back grows from run to run."""
    dist.init_process_group("gloo")
    kept.append(rank)
    dist.barrier()
    return len(kept)


def failing_now_and_then(rank: int) -> None:
    dist.init_process_group("gloo")
    if next(ticks) % 7 == 0:
        raise ArithmeticError("now")
    dist.barrier()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (reading_a_clock, "all-reduce on rank 0 at "),
        (keeping_a_list, "rank 0 returned other bits"),
        (failing_now_and_then, "ArithmeticError: now"),
    ],
)
def test_E7_a_program_that_does_not_repeat_itself_is_not_said_to_race(function: Any, words: str) -> None:
    global ticks
    ticks = itertools.count(1)
    found = explore(Program(function, 2), range(20))
    assert found.finding is None and not found.holds and found.unsteady.startswith("the program does not repeat itself")
    assert words in found.unsteady
    assert len(found.hashes) <= 2


def test_E7_unless_schedules_are_run_twice_a_clock_is_blamed_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: nobody asks whether a schedule repeats itself."""
    monkeypatch.setattr("samebits.sim.explore._unsteady", lambda *_: "")
    finding = explore(Program(reading_a_clock, 2), range(20)).finding
    assert finding is not None and "brought other bits" in finding.why


def slow_wires(members: Members, calls: Any, clocks: Any) -> list[float]:
    return [max(clocks) + 0.5 * len(members.ranks)] * len(clocks)


def timed(rank: int, scale: float) -> torch.Tensor:
    dist.init_process_group("gloo")
    own = current()
    assert own is not None
    x = torch.full((5,), scale * (rank + 1))
    for _ in range(3):
        own.elapse(0.25 * (rank + 1))
        dist.all_reduce(x)
    return x


def test_E8_bits_do_not_depend_on_costs_nor_times_on_values() -> None:
    cheap = execute(timed, 3, (1.0,))
    dear = execute(timed, 3, (1.0,), settings=Settings(parts=Parts(timing=slow_wires)))
    other = execute(timed, 3, (7.0,))
    assert [x.tolist() for x in cheap.results] == [x.tolist() for x in dear.results] and cheap.clocks != dear.clocks
    assert cheap.clocks == other.clocks and [x.tolist() for x in other.results] != [x.tolist() for x in cheap.results]


def test_a_program_that_always_fails_has_no_finding_of_schedules() -> None:
    found = explore(Program(failing, 3), range(5))
    assert "DeadlockError" in found.reference.error and found.finding is None and found.runs == 0
    with pytest.raises(SpawnException):
        execute(failing, 3)
