"""Training over real ranks: DIST-001 and DIST-002 hold, and every planted fault is seen by one of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.parallel.ranks import on_ranks
from tests.train.small_run import TINY, small

from samebits.numerics.bits import same_bits
from samebits.numerics.recipes import make
from samebits.parallel import collectives
from samebits.parallel.layout import Block
from samebits.parallel.rank_errors import RankError
from samebits.parallel.world import World
from samebits.parity.distributed import (
    LossVerdict,
    Parameters,
    ParameterVerdict,
    Record,
    losses_agree,
    parameters_agree,
    recorded,
)
from samebits.train.contracts.data_parallel import rank_faults
from samebits.train.ranks import Gridded, ranks_of
from samebits.train.watch import BreachError

STEPS = 4
BATCH = (
    "training.micro_batch_size=2",
    "training.gradient_accumulation_steps=4",
    "training.lanes=4",
    "optimizer.warmup_steps=1",
)
PRESET = (*TINY, *BATCH)
# Two thin layers, and all that a fault needs to be seen.
SMALL = (*BATCH, "data.max_length=32", f"optimizer.max_grad_norm={rank_faults.MAX_NORM}")
GRIDS = [(1, 2), (2, 1), (2, 2), (1, 4)]
NAMES = [f"tensor {tensor} data {data}" for tensor, data in GRIDS]
Case = tuple[tuple[str, ...], type[Gridded] | None]
"""Settings, and whose part of the run a rank has; None: no fault."""
WHOLE: Case = (PRESET, None)
HEALTHY: Case = (SMALL, None)
OneRun = list[Record | str]
"""What each rank found: its record, or the contract that it broke."""


def tried(world: World, tensor: int, cases: Sequence[Case]) -> list[Record | str]:
    """One run after the other in one world."""
    found: list[Record | str] = []
    for settings, fault in cases:
        try:
            found.append(recorded(world, small(*settings), tensor, STEPS, fault or ranks_of))
        except BreachError as breach:
            found.append(str(breach))
    return found


@cache
def alone(settings: tuple[str, ...]) -> Record:
    return recorded(World(), small(*settings), 1, STEPS)


@cache
def over_ranks(tensor: int, data: int, cases: tuple[Case, ...]) -> dict[Case, OneRun]:
    """What every rank found, by case."""
    by_rank = on_ranks(tensor * data, tried, tensor, cases)
    return {case: [found[place] for found in by_rank] for place, case in enumerate(cases)}


def whole_run(found: OneRun) -> list[Record]:
    """The records of a run that no contract stopped. Every rank says the same losses, or it is no run at all."""
    records = [each for each in found if isinstance(each, Record)]
    assert len(records) == len(found), found
    assert len({each.losses for each in records}) == 1
    return records


def judged(found: OneRun, wanted: Record) -> tuple[ParameterVerdict, LossVerdict]:
    """Both gates."""
    records = whole_run(found)
    return parameters_agree([each.parameters for each in records]), losses_agree(records[0].losses, wanted.losses)


@pytest.mark.parametrize(
    ("tensor", "data"),
    GRIDS,
    ids=[f"FALSIFY-DIST-001 FALSIFY-DISTRIBUTED_TRAINING_V1_001 FALSIFY-DDP-001 {name}" for name in NAMES],
)
def test_every_rank_has_the_parameters_of_rank_0(tensor: int, data: int) -> None:
    records = whole_run(over_ranks(tensor, data, (WHOLE,))[WHOLE])
    found = parameters_agree([each.parameters for each in records])
    names = records[0].parameters[0].keys()
    norms = sum("norm" in name for name in names)
    # Copies against the first; within it tensor-parallel ranks have in common what is not cut.
    compared = STEPS * (len(names) * (data - 1) * tensor + norms * (tensor - 1))
    assert found == ParameterVerdict(holds=True, compared=compared, detail="")


@pytest.mark.parametrize(
    ("tensor", "data"), GRIDS, ids=[f"FALSIFY-DIST-002 FALSIFY-DISTRIBUTED_TRAINING_V1_002 {name}" for name in NAMES]
)
def test_the_loss_is_that_of_one_worker(tensor: int, data: int) -> None:
    records, wanted = whole_run(over_ranks(tensor, data, (WHOLE,))[WHOLE]), alone(PRESET)
    assert losses_agree(records[0].losses, wanted.losses) == LossVerdict(holds=True, within_gate=True, detail="")
    assert len(set(wanted.losses)) == STEPS
    # All weights and both moments of each, too.
    assert [each.state for each in records] == [wanted.state] + [None] * (tensor * data - 1)


def planted(*faults: type[Gridded] | None) -> tuple[Case, ...]:
    return tuple((SMALL, fault) for fault in faults)


FEWER_LANES: Case = ((*SMALL, "training.lanes=2"), None)
COMPARED = (*SMALL, "monitoring.compare_steps=1")
STALE = rank_faults.KeepsStaleWeights
Shared = tuple[int, int, tuple[Case, ...]]
"""(tensor, data, cases): one world for faults one after the other."""
TWO: Shared = (
    1,
    2,
    (
        FEWER_LANES,
        (COMPARED, None),
        (COMPARED, STALE),
        *planted(
            None,
            STALE,
            rank_faults.DropsGradient,
            rank_faults.LeavesOutReduction,
            rank_faults.ClipsFirst,
            rank_faults.SumsGradients,
            rank_faults.SumsMeans,
            rank_faults.NanInGradient,
            rank_faults.NanInLogprobs,
            rank_faults.LeavesOutNan,
        ),
    ),
)
FOUR: Shared = (1, 4, planted(None, rank_faults.AddsFromItself, rank_faults.AddsInBuckets))
TENSOR: Shared = (2, 1, ((COMPARED, None), (COMPARED, STALE), *planted(None, STALE, rank_faults.DropsGradient)))


def both(world: Shared, case: Case) -> tuple[ParameterVerdict, LossVerdict]:
    """The verdicts on a planted fault, once the same world without it has passed."""
    found = over_ranks(*world)
    assert all(verdict.holds for verdict in judged(found[HEALTHY], alone(SMALL)))
    assert whole_run(found[HEALTHY])[0].state == alone(SMALL).state
    return judged(found[case], alone(SMALL))


KILLED = {
    "a dropped gradient on one rank": (TWO, (SMALL, rank_faults.DropsGradient)),
    "a dropped gradient of a tensor-parallel block": (TENSOR, (SMALL, rank_faults.DropsGradient)),
    "one rank leaves out the reduction": (TWO, (SMALL, rank_faults.LeavesOutReduction)),
    "clipping before the reduction": (TWO, (SMALL, rank_faults.ClipsFirst)),
    "the sum instead of the mean": (TWO, (SMALL, rank_faults.SumsMeans)),
}
# What an absolute 1e-4 lets pass: other roundings, and a scale of gradients that clipping and AdamW nearly undo.
BELOW_THE_GATE = {
    "a sum that begins with the rank itself": (FOUR, (SMALL, rank_faults.AddsFromItself)),
    "buckets cut by the world size": (FOUR, (SMALL, rank_faults.AddsInBuckets)),
    "lanes cut by the world size": (TWO, FEWER_LANES),
    "the sum of gradients instead of the mean": (TWO, (SMALL, rank_faults.SumsGradients)),
}


@pytest.mark.parametrize("name", [*KILLED, *BELOW_THE_GATE], ids=lambda name: f"FALSIFY-DIST-002 {name}")
def test_another_loss_is_seen(name: str) -> None:
    parameters, losses = both(*(KILLED | BELOW_THE_GATE)[name])
    assert not losses.holds and losses.within_gate == (name in BELOW_THE_GATE)
    # Each weight has one rank that updates it, so a wrong update is wrong everywhere.
    assert parameters.holds


@pytest.mark.parametrize("world", [TWO, TENSOR], ids=["FALSIFY-DIST-001 stale copy", "FALSIFY-DIST-001 stale block"])
def test_stale_weights_are_seen(world: Shared) -> None:
    parameters, losses = both(world, (SMALL, STALE))
    assert not parameters.holds and not losses.holds
    assert parameters.detail.startswith("DIST-001: step 1: model.") and " on rank 1, " in parameters.detail


@pytest.mark.parametrize(
    ("world", "what"),
    [(TWO, "this part of the weights"), (TENSOR, "the weights that all ranks have")],
    ids=["data", "tensor"],
)
def test_stale_weights_stop_every_rank(world: Shared, what: str) -> None:
    """The trainer's own comparison, at the first step."""
    stopped = over_ranks(*world)[COMPARED, STALE]
    assert len(set(stopped)) == 1 and str(stopped[0]).startswith(f"DIST-001: step 1: {what}: those of place 1 are ")
    assert all(verdict.holds for verdict in judged(over_ranks(*world)[COMPARED, None], alone(SMALL)))


@pytest.mark.parametrize(
    "fault",
    [rank_faults.NanInGradient, rank_faults.NanInLogprobs],
    ids=["FALSIFY-DDP-003 gradient", "FALSIFY-DDP-003 loss"],
)
def test_a_nan_on_one_rank_stops_all(fault: type[Gridded]) -> None:
    found = over_ranks(*TWO)[SMALL, fault]
    assert len(found) == 2 and all(str(each).startswith("C-TRAINSTABLE-001: step 1: ") for each in found)
    # Planted: taken for zero it stops nobody, and the loss is another.
    parameters, losses = both(TWO, (SMALL, rank_faults.LeavesOutNan))
    assert parameters.holds and not losses.holds


def facts(*, ranks: int = 4, steps: int = 3) -> list[list[dict[str, tuple[Block, str]]]]:
    block = Block(rows=(0, 2), columns=(0, 3))
    return [[{"w": (block, f"{step}"), "v": (block, f"v{step}")} for step in range(steps)] for _ in range(ranks)]


def damaged(kind: str) -> Sequence[Sequence[Parameters]]:
    found = facts()
    if kind == "another bit":
        found[2][1]["v"] = (found[2][1]["v"][0], "v9")
    elif kind == "a missing parameter":
        del found[3][2]["w"]
    elif kind == "an empty set":
        return [[{} for _ in steps] for steps in found]
    elif kind == "a missing step":
        del found[1][2]
    elif kind == "no step":
        return [[] for _ in found]
    elif kind == "no rank":
        return []
    elif kind == "one rank":
        return found[:1]
    else:
        for rank, steps in enumerate(found):
            for parameters in steps:
                parameters.update(
                    {
                        name: (Block(rows=(rank, rank + 1), columns=(0, 3)), digest)
                        for name, (_, digest) in parameters.items()
                    }
                )
    return found


NO_PASS = {
    "another bit": "step 2: v is v9 on rank 2, v1 on rank 0; allowed: the same bits",
    "a missing parameter": "step 3: rank 3 has 1 parameters, rank 0 has 2; allowed: the same names, at least 1",
    "an empty set": "step 1: rank 0 has 0 parameters, rank 0 has 0; allowed: the same names, at least 1",
    "a missing step": "rank 1 has 2 steps, rank 0 3; allowed: equally many",
    "no step": "there are parameters of 0 steps; allowed: at least 1",
    "no rank": "there are parameters of 0 ranks; allowed: at least 2",
    "one rank": "there are parameters of 1 ranks; allowed: at least 2",
    "nothing in common": "no two ranks have the same part of a parameter; allowed: at least two",
}


@pytest.mark.parametrize("kind", NO_PASS)
def test_what_is_missing_is_no_pass(kind: str) -> None:
    assert parameters_agree(facts()) == ParameterVerdict(holds=True, compared=18, detail="")
    found = parameters_agree(damaged(kind))
    assert not found.holds and found.detail == f"DIST-001: {NO_PASS[kind]}"


@pytest.mark.parametrize(
    ("distributed", "alone", "holds", "within"),
    [
        (0.0, 0.0, True, True),
        (0.0, -0.0, False, True),
        (3.0, math.nextafter(3.0, 4.0), False, True),
        (1e-4, 0.0, False, True),
        (math.nextafter(1e-4, 1.0), 0.0, False, False),
        (2.0, 2.1, False, False),
        (math.nan, math.nan, False, False),
        (math.inf, math.inf, False, False),
        (1.0, math.nan, False, False),
    ],
)
def test_losses_are_bitwise_and_in_the_gate(distributed: float, alone: float, holds: bool, within: bool) -> None:
    found = losses_agree([1.5, distributed, 1.25], [1.5, alone, 1.25])
    assert (found.holds, found.within_gate, found.step) == (holds, within, None if holds else 2)
    if not holds:
        assert (repr(found.distributed), repr(found.alone)) == (repr(distributed), repr(alone))
        words = f"step 2: the loss is {distributed!r}, that of one worker {alone!r}; allowed: the same bits"
        assert found.detail == f"DIST-002: {words}"


@pytest.mark.parametrize(("distributed", "alone"), [([], []), ([1.0], []), ([], [1.0]), ([1.0], [1.0, 1.0])])
def test_losses_that_are_missing_are_no_pass(distributed: list[float], alone: list[float]) -> None:
    found = losses_agree(distributed, alone)
    assert not found.holds and not found.within_gate
    counts = f"{len(distributed)} losses of ranks, {len(alone)} of one worker"
    assert found.detail == f"DIST-002: {counts}; allowed: equally many, at least 1"


def part(rank: int, length: int) -> torch.Tensor:
    return torch.from_numpy(make("normal", (length,), 7 + rank))


def in_chunks(world: World, cuts: list[int]) -> torch.Tensor | str:
    try:
        return collectives.reduce_scatter(world.group, part(world.rank, 7), cuts).clone()
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("size", [3], ids=["FALSIFY-RING-003"])
def test_seven_numbers_over_three_ranks(size: int) -> None:
    chunks = on_ranks(size, in_chunks, collectives.even_cuts(7, size))
    assert [len(chunk) for chunk in chunks] == [3, 2, 2]
    assert same_bits(torch.cat(chunks), collectives.tree_sum([part(rank, 7) for rank in range(size)]))
    # Planted: what a division leaves over is lost.
    refused = "ranks: cuts are [0, 2, 4, 6]; allowed: 4 ascending places from 0 to 7"
    assert on_ranks(size, in_chunks, [0, 2, 4, 6]) == [refused] * size


def a_hundred_sums(world: World) -> tuple[int, str]:
    """A hundred sums one after the other; then an exchange in which every rank sends before any receives."""
    wanted = collectives.tree_sum([part(rank, 100) for rank in range(world.size)])
    found = [collectives.all_reduce(world.group, part(world.rank, 100)) for _ in range(100)]
    same = sum(same_bits(each, wanted) for each in found)
    impatient = replace(world, timeout=0.5).group
    try:
        impatient.exchange("all send first", sends=[(part(world.rank, 100), (world.rank + 1) % world.size)])
        impatient.exchange("then all receive", receives=[(torch.empty(100), (world.rank - 1) % world.size)])
    except RankError as error:
        return same, str(error)
    return same, "it ended"


@pytest.mark.parametrize("size", [4], ids=["FALSIFY-RING-005"])
def test_a_hundred_runs_of_four_ranks_end(size: int) -> None:
    """A hundred sums in one world; the planted order ends by its timeout alone."""
    for ended, planted in on_ranks(size, a_hundred_sums):
        assert ended == 100
        assert '"all send first"' in planted
