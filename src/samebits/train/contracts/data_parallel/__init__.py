"""Data parallelism in real processes: runs of the trainer, averages and sums over ranks, and what each rank has then.

Ranks are started once for each number of them, and asked again for every call."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from samebits.model import Model
from samebits.model.contracts.small_model import joined, model_of
from samebits.model.weights import shapes
from samebits.numerics.bits import same_bits
from samebits.parallel.collectives import all_reduce, tree_sum
from samebits.parallel.grid import Grid
from samebits.parallel.local_ranks import LocalRanks
from samebits.parallel.rank_errors import RankError
from samebits.parallel.world import Group, World
from samebits.train.configuration import TrainConfig
from samebits.train.contracts.small_run import config_of, data_of
from samebits.train.ranks import Gridded, Ranks, ranks_of
from samebits.train.trainer import Trainer
from samebits.train.watch import BreachError

STEPS = 2
LANES = 4
"""Of every run, whatever its ranks."""
PATIENCE = 60.0
"""Seconds that a message may take on a machine that is as busy as it gets."""
Part = Callable[[Grid, Model], Ranks]
"""What makes a rank's part of a run; a faulty one can stand in."""
_kept: dict[tuple[int, int], LocalRanks] = {}


def ranks(size: int) -> LocalRanks:
    """So many ranks of this process, kept from call to call; others where those have failed."""
    key = (os.getpid(), size)
    if key not in _kept or _kept[key].closed:
        _kept[key] = LocalRanks(size, preload=(__name__, "samebits.train.trainer"))
    return _kept[key]


def config(text: Tensor, rate: Tensor) -> TrainConfig:
    """One update over all sequences a step, in passes of one sequence, in as many lanes for any number of ranks."""
    found = config_of(len(text), 1, float(rate), STEPS, width=text.shape[1] - 1)
    return replace(found, training=replace(found.training, lanes=LANES))


def log_of(trainer: Trainer) -> Tensor:
    """(steps, 1 + P) float64: after each step its loss, and every weight that this rank computes with.

    What stops a run leaves NaN from its step on."""
    size = sum(math.prod(shape) for shape in shapes(trainer.model().config).values())
    log = torch.full((STEPS, 1 + size), math.nan, dtype=torch.float64)
    for line in log:
        try:
            loss = trainer.step().loss
        except BreachError:
            break
        line[0], line[1:] = loss, joined(dict(trainer.model().weights))
    return log


def trained_here(
    world: World, text: Tensor, counts: Tensor, weights: Tensor, rate: Tensor, poisoned: int, part: Part | None
) -> Tensor:
    """One rank's log of the run; the gradient of rank `poisoned` has a NaN in it."""
    model = model_of(weights)
    made = (part or ranks_of)(Grid(world=world), model)
    if world.rank == poisoned:
        _poison(made)
    return log_of(Trainer(config(text, rate), model, data_of(text, counts), ranks=made))


def _poison(made: Ranks) -> None:
    """From now on the first number that this rank brings to a reduction is none."""
    assert isinstance(made, Gridded)  # more than one rank
    whole = made.reduced

    def reduced(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        next(iter(gradients.values())).view(-1)[0] = math.nan
        return whole(gradients)

    made.reduced = reduced  # type: ignore[method-assign]


def trained(
    text: Tensor,
    counts: Tensor,
    weights: Tensor,
    rate: Tensor,
    size: Tensor,
    poisoned: Tensor,
    *,
    part: Part | None = None,
) -> Tensor:
    """(ranks, steps, 1 + P): the log of every rank of a run of so many; rank -1 is nobody's."""
    return torch.stack(ranks(int(size)).call(trained_here, text, counts, weights, rate, int(poisoned), part))


def averaged_here(world: World, parts_ND: Tensor, counts_N: Tensor) -> Tensor:
    """The mean over all targets, of which each rank has the mean over its own: shares first, then the sum."""
    share = counts_N[world.rank] / counts_N.sum()
    return all_reduce(world.group, parts_ND[world.rank] * share)


def averaged(parts_ND: Tensor, counts_N: Tensor) -> Tensor:
    """(ranks, D): what every rank has after the reduction."""
    return torch.stack(ranks(len(parts_ND)).call(averaged_here, parts_ND, counts_N))


Sum = Callable[[Group, Tensor], Tensor]


def ended_here(world: World, parts_ND: Tensor, times: int, add: Sum, patience: float) -> int:
    """How many sums in a row ended with the bits of the tree over ranks."""
    wanted = tree_sum([part.clone() for part in parts_ND])
    group = replace(world, timeout=patience).group
    for done in range(times):
        try:
            found = add(group, parts_ND[world.rank].clone())
        except RankError:
            return done
        if not same_bits(found, wanted):
            return done
    return times


def ended(parts_ND: Tensor, times: Tensor, *, add: Sum = all_reduce, patience: float = PATIENCE) -> Tensor:
    """(ranks,): how many of so many sums in a row ended on each. Ranks that failed are not asked again."""
    used = ranks(len(parts_ND))
    found = used.call(ended_here, parts_ND, int(times), add, patience)
    if min(found) < int(times):
        used.close()
    return torch.tensor(found)
