"""What of a run is this rank's: its lanes, its block of every weight in a pass, its range of every weight in an update.

One rank alone has all of it; the ranks of a grid share it, and every bit is that of one alone. Weights that are updated
lie as in one process, in consecutive ranges, with their moments: no rank keeps more than its share of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Final, Protocol

import torch
from torch import Tensor

from samebits.model import Model
from samebits.model.split import Split
from samebits.model.weights import shapes
from samebits.ops.grad_norm import grad_norm
from samebits.parallel.collectives import gather, gathered_integers
from samebits.parallel.grad_norm import norm_of, piece_sums
from samebits.parallel.grid import Grid
from samebits.parallel.layout import Block, whole
from samebits.parallel.schedules import Lanes
from samebits.parallel.shards import Shards
from samebits.parallel.world import Group, World

Tensors = dict[str, Tensor]
LOGPROBS: Final = "logprobs"


class Ranks(Protocol):
    """This rank's part of a run."""

    @property
    def world(self) -> World: ...

    @property
    def copies(self) -> Group:
        """The ranks that compute with the same part of the weights, one for each copy of them."""

    def lanes(self, lanes: Lanes) -> range:
        """The lanes that it goes through."""

    def take(self, name: str, tensor: Tensor) -> Tensor:
        """What it updates of a whole tensor, in memory of its own."""

    def model(self, base: Model, weights: Tensors, dtype: torch.dtype, *, gathers: bool = False) -> Model:
        """The model of a pass, from what all ranks have updated; `gathers`: cut as an engine wants it."""

    def reduced(self, gradients: Tensors) -> Tensors:
        """The sum over all lanes of what it updates, from the sums over its own lanes."""

    def norms(self, gradients: Tensors, name: str) -> tuple[Tensor, Tensor]:
        """Of all gradients as one, and of the tensor of that name alone."""

    def sums(self, counts: Sequence[int]) -> list[int]:
        """Sums of whole numbers over all ranks, each of which counted what it updates."""

    def everyones(self, logprobs: Tensor, lanes: Lanes, count: Callable[[range], int]) -> Tensor:
        """The logprobs of all lanes; `count` tells how many some of them have."""

    def digests(self, model: Model) -> dict[str, list[int]]:
        """Of bits that several ranks have, rank by rank: this rank's part of every copy, and what all ranks have."""

    def whole(self, held: Tensors, names: Mapping[str, str]) -> Tensors | None:
        """All tensors whole on rank 0, which keeps them; None on the others. `names`: whose ranges each entry has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Alone:
    """One rank, which has everything."""

    world: World = field(default_factory=World)

    @property
    def copies(self) -> Group:
        return self.world.group

    def lanes(self, lanes: Lanes) -> range:
        return range(lanes.lanes)

    def take(self, name: str, tensor: Tensor) -> Tensor:
        return tensor.clone()

    def model(self, base: Model, weights: Tensors, dtype: torch.dtype, *, gathers: bool = False) -> Model:
        return replace(base, weights={name: each.to(dtype) for name, each in weights.items()}, sums=None)

    def reduced(self, gradients: Tensors) -> Tensors:
        return gradients

    def norms(self, gradients: Tensors, name: str) -> tuple[Tensor, Tensor]:
        return grad_norm(gradients.values()), grad_norm([gradients[name]])

    def sums(self, counts: Sequence[int]) -> list[int]:
        return list(counts)

    def everyones(self, logprobs: Tensor, lanes: Lanes, count: Callable[[range], int]) -> Tensor:
        return logprobs

    def digests(self, model: Model) -> dict[str, list[int]]:
        return {}

    def whole(self, held: Tensors, names: Mapping[str, str]) -> Tensors | None:
        return held


ALONE: Final = Alone()


def _digest(tensors: Iterable[Tensor]) -> int:
    state = hashlib.blake2b(digest_size=7)
    for tensor in tensors:
        state.update(tensor.reshape(-1).view(torch.uint8).cpu().numpy().tobytes())
    return int.from_bytes(state.digest())


class Gridded:
    """One rank of a grid."""

    def __init__(self, grid: Grid, base: Model) -> None:
        self.grid, self.world, self._config = grid, grid.world, base.config
        self.split, self.shards = self._cut(gathers=False)

    def _cut(self, *, gathers: bool) -> tuple[Split | None, Shards]:
        """How the weights are cut for passes of one kind. What a rank updates is the same for both."""
        everything = shapes(self._config)
        split = Split(config=self._config, group=self.grid.tensor_group, gathers=gathers)

        def held(name: str, place: int) -> Block:
            return whole(everything[name]) if self.grid.tensor == 1 else split.held(name, place)

        shards = Shards(grid=self.grid, shapes=everything, holding=held)
        return (split if self.grid.tensor > 1 else None), shards

    @cached_property
    def _gathering(self) -> tuple[Split | None, Shards]:
        return self._cut(gathers=True)

    @property
    def copies(self) -> Group:
        return self.grid.data_group

    def lanes(self, lanes: Lanes) -> range:
        return lanes.lanes_of(self.grid.copy, self.grid.data)

    def take(self, name: str, tensor: Tensor) -> Tensor:
        return self.shards.take(name, tensor)

    def model(self, base: Model, weights: Tensors, dtype: torch.dtype, *, gathers: bool = False) -> Model:
        split, shards = self._gathering if gathers else (self.split, self.shards)
        blocks = shards.to_blocks({name: weight.to(dtype) for name, weight in weights.items()})
        return replace(base, weights=blocks, sums=None, split=split)

    def reduced(self, gradients: Tensors) -> Tensors:
        return self.shards.to_owners({name: gradients[name] for name in self.shards.shapes})

    def norms(self, gradients: Tensors, name: str) -> tuple[Tensor, Tensor]:
        sums = piece_sums(self.world.group, self.shards.ownership, gradients)
        return norm_of(sums, self.shards.ownership), norm_of(sums, self.shards.ownership, [name])

    def sums(self, counts: Sequence[int]) -> list[int]:
        everyone = gathered_integers(self.world.group, counts)
        return [sum(each) for each in zip(*everyone, strict=True)]

    def everyones(self, logprobs: Tensor, lanes: Lanes, count: Callable[[range], int]) -> Tensor:
        group = self.grid.data_group
        cuts = list(accumulate((count(lanes.lanes_of(copy, group.size)) for copy in range(group.size)), initial=0))
        flat = logprobs.new_empty(cuts[-1])
        flat[cuts[group.place] : cuts[group.place + 1]] = logprobs
        return gather(group, flat, cuts, LOGPROBS)

    def digests(self, model: Model) -> dict[str, list[int]]:
        part, common = _digest(model.weights.values()), _digest(model.weights[name] for name in self.shards.copied)
        copies, everyone = (
            gathered_integers(self.grid.data_group, [part]),
            gathered_integers(self.world.group, [common]),
        )
        return {
            "this part of the weights": [digest for (digest,) in copies],
            "the weights that all ranks have": [digest for (digest,) in everyone],
        }

    def whole(self, held: Tensors, names: Mapping[str, str]) -> Tensors | None:
        return self.shards.to_first(held, names)


def ranks_of(grid: Grid, base: Model) -> Ranks:
    """This rank's part of a run on a grid."""
    return Gridded(grid, base) if grid.world.size > 1 else ALONE
