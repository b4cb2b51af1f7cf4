"""Planted faults of data parallelism: a rank with other weights or gradients, sums for means, a NaN that is hidden,
messages in an order that never ends."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from samebits.parallel.collectives import all_reduce
from samebits.parallel.world import Group, World
from samebits.train.contracts.data_parallel import averaged_here, ended, ranks, trained
from samebits.train.contracts.data_parallel.rank_faults import (
    AddsFromItself,
    ClipsFirst,
    DropsGradient,
    HidesNan,
    KeepsStaleWeights,
    LeavesOutReduction,
    SumsGradients,
    SumsMeans,
)

stale_weights = partial(trained, part=KeepsStaleWeights)
dropped_gradient = partial(trained, part=DropsGradient)
reduction_left_out = partial(trained, part=LeavesOutReduction)
clipped_before_the_sum = partial(trained, part=ClipsFirst)
summed_losses = partial(trained, part=SumsMeans)
summed_gradients = partial(trained, part=SumsGradients)
added_from_itself = partial(trained, part=AddsFromItself)
hidden_nan = partial(trained, part=HidesNan)


def _summed_here(world: World, parts_ND: Tensor, counts_N: Tensor) -> Tensor:
    return all_reduce(world.group, parts_ND[world.rank].clone())


def summed(parts_ND: Tensor, counts_N: Tensor) -> Tensor:
    """The sum instead of the mean."""
    return torch.stack(ranks(len(parts_ND)).call(_summed_here, parts_ND, counts_N))


def mean_of_means(parts_ND: Tensor, counts_N: Tensor) -> Tensor:
    """All ranks count alike, however many targets they have."""
    return torch.stack(ranks(len(parts_ND)).call(averaged_here, parts_ND, torch.ones_like(counts_N)))


def _sends_first(group: Group, flat: Tensor) -> Tensor:
    """To the next rank, and only then from the one before."""
    group.exchange("all send first", sends=[(flat, (group.place + 1) % group.size)])
    group.exchange("then all receive", receives=[(torch.empty_like(flat), (group.place - 1) % group.size)])
    return flat


# It would not end in any time; how long it is waited for decides nothing.
all_send_first = partial(ended, add=_sends_first, patience=0.5)
