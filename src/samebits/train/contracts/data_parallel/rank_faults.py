"""Planted faults of training over ranks: each is one rank's part of a run with one thing wrong in it.

Those that need a guilty rank take rank 1. All of them take part in every exchange: none is noticed by a hang."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor

from samebits.model import Model
from samebits.ops.grad_norm import grad_norm
from samebits.parallel.collectives import even_cuts, gather
from samebits.parallel.grid import Grid
from samebits.parallel.schedules import Lanes
from samebits.parallel.shards import Shards
from samebits.train.ranks import Gridded, Tensors
from samebits.train.trainer import clipped

GUILTY: Final = 1
WEIGHT: Final = "model.layers.0.mlp.down_proj.weight"
# Small enough that the part of one rank is too long already.
MAX_NORM: Final = 0.25


class DropsGradient(Gridded):
    """One rank's gradient of one weight is lost."""

    def reduced(self, gradients: Tensors) -> Tensors:
        lost = {WEIGHT: torch.zeros_like(gradients[WEIGHT])} if self.world.rank == GUILTY else {}
        return super().reduced(gradients | lost)


class LeavesOutReduction(Gridded):
    """One rank updates by the gradients of its own lanes."""

    def reduced(self, gradients: Tensors) -> Tensors:
        own = {name: self.take(name, each) for name, each in gradients.items()}
        summed = super().reduced(gradients)
        return own if self.world.rank == GUILTY else summed


class KeepsStaleWeights(Gridded):
    """One rank goes on with the weights of the first step."""

    def __init__(self, grid: Grid, base: Model) -> None:
        super().__init__(grid, base)
        self._first: Model | None = None

    def model(self, base: Model, weights: Tensors, dtype: torch.dtype, *, gathers: bool = False) -> Model:
        found = super().model(base, weights, dtype, gathers=gathers)
        if self._first is None:
            self._first = found
        return self._first if self.world.rank == GUILTY else found


class _RotatedShards(Shards):
    def _assembled(self, coming: Mapping[int, Tensor], copy: int, like: Tensor) -> Tensor:
        return super()._assembled(coming, (copy + self.grid.world.rank) % self.grid.data, like)


class AddsFromItself(Gridded):
    """Every rank adds the parts of the others as they come in a ring: its own first, then those after it."""

    def __init__(self, grid: Grid, base: Model) -> None:
        super().__init__(grid, base)
        right = self.shards
        self.shards = _RotatedShards(grid=grid, shapes=right.shapes, holding=right.holding)


class AddsInBuckets(Gridded):
    """Buckets as many as ranks, each a chain over ranks from its own number on: the ring that everybody uses."""

    def reduced(self, gradients: Tensors) -> Tensors:
        group = self.grid.data_group
        own = torch.cat([each.reshape(-1) for each in gradients.values()])
        everyone = own.new_empty(group.size * len(own))
        everyone.view(group.size, -1)[group.place] = own
        parts = gather(group, everyone, even_cuts(len(everyone), group.size)).view(group.size, -1)
        cuts = even_cuts(len(own), group.size)
        for bucket in range(group.size):
            span = slice(cuts[bucket], cuts[bucket + 1])
            own[span] = parts[bucket, span]
            for turn in range(1, group.size):
                own[span] += parts[(bucket + turn) % group.size, span]
        pieces = torch.split(own, [each.numel() for each in gradients.values()])
        return {
            name: self.take(name, piece.view_as(each))
            for (name, each), piece in zip(gradients.items(), pieces, strict=True)
        }


class ClipsFirst(Gridded):
    """Gradients are clipped by the norm of each rank's part of them, and then added."""

    def reduced(self, gradients: Tensors) -> Tensors:
        clipped(list(gradients.values()), grad_norm(gradients.values()), MAX_NORM)
        return super().reduced(gradients)


class SumsGradients(Gridded):
    """Gradients of the ranks' means are added, not averaged."""

    def reduced(self, gradients: Tensors) -> Tensors:
        return super().reduced({name: self.grid.data * each for name, each in gradients.items()})


class SumsMeans(SumsGradients):
    """So are the losses."""

    def everyones(self, logprobs: Tensor, lanes: Lanes, count: Callable[[range], int]) -> Tensor:
        return super().everyones(self.grid.data * logprobs, lanes, count)


class NanInGradient(Gridded):
    """One number of one rank."""

    def reduced(self, gradients: Tensors) -> Tensors:
        if self.world.rank == GUILTY:
            gradients[WEIGHT][0, 0] = torch.nan
        return super().reduced(gradients)


class NanInLogprobs(Gridded):
    """One number of one rank."""

    def everyones(self, logprobs: Tensor, lanes: Lanes, count: Callable[[range], int]) -> Tensor:
        found = logprobs.clone()
        if self.world.rank == GUILTY:
            found[0] = torch.nan
        return super().everyones(found, lanes, count)


class HidesNan(Gridded):
    """A number that is none is taken for zero, without a word."""

    def reduced(self, gradients: Tensors) -> Tensors:
        return super().reduced({name: each.nan_to_num() for name, each in gradients.items()})


class LeavesOutNan(HidesNan):
    """One number of one rank is none, and taken for zero."""

    def reduced(self, gradients: Tensors) -> Tensors:
        if self.world.rank == GUILTY:
            gradients[WEIGHT][0, 0] = torch.nan
        return super().reduced(gradients)
