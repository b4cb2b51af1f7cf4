"""Grids of worlds that nobody joined: for tests of what is a function of whole numbers alone."""

from __future__ import annotations

from functools import cache

from samebits.model.config import ModelConfig
from samebits.model.split import Split
from samebits.model.weights import shapes
from samebits.parallel.grid import Grid
from samebits.parallel.layout import whole
from samebits.parallel.shards import Holding
from samebits.parallel.world import World


def grid_of(rank: int, shape: tuple[int, int]) -> Grid:
    """shape: (tensor, data)."""
    return Grid(world=World(rank=rank, size=shape[0] * shape[1]), tensor=shape[0])


def holding_of(config: ModelConfig, grid: Grid) -> Holding:
    if grid.tensor == 1:
        everything = shapes(config)
        return lambda name, place: whole(everything[name])
    return cache(Split(config=config, group=grid.tensor_group).held)
