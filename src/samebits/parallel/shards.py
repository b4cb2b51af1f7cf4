"""Tensors on their way between the blocks with which ranks compute and the flat ranges that ranks update.

Gradients go to the rank that updates them, which adds those of all copies by the balanced tree; weights come back. Each
number travels once each way. Knows no model: what a rank computes with is told by `Holding`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch
from torch import Tensor

from samebits.parallel.collectives import tree_sum
from samebits.parallel.grid import Grid
from samebits.parallel.layout import Block, Ownership, Range, matrix, met

GRADIENTS: Final = "tree of gradients"
WEIGHTS: Final = "weights to all ranks"
RECORD: Final = "weights to rank 0"
Holding = Callable[[str, int], Block]
"""(name, place in the copy) -> the block of that tensor with which the rank computes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A block of a tensor on its way, with its places in the two forms that this rank has of the tensor."""

    name: str
    block: Block
    held: tuple[int, int]
    """Rows and columns of the block with which this rank computes."""
    within: tuple[slice, slice]
    """Where the piece is in it; it may be elsewhere."""
    start: int
    """Where this rank's range begins; the piece may be outside."""
    width: int
    """Columns of the whole tensor."""

    def of_block(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return tensors[self.name].view(self.held)[self.within]

    def of_range(self, ranges: Mapping[str, Tensor]) -> Tensor:
        (first, last), (left, right), flat = self.block.rows, self.block.columns, ranges[self.name].view(-1)
        at = first * self.width - self.start
        if last - first == 1:
            return flat[at + left : at + right].view(1, -1)
        return flat[at : at + (last - first) * self.width].view(last - first, self.width)[:, left:right]


Route = list[Piece]
"""What goes from one rank to another, in the order of the message."""


@dataclass(frozen=True, kw_only=True)
class Shards:
    """A grid's ranks and what each holds of every tensor."""

    grid: Grid
    shapes: Mapping[str, tuple[int, ...]]
    holding: Holding

    @cached_property
    def ownership(self) -> Ownership:
        sizes = {name: rows * columns for name, (rows, columns) in self._matrices.items()}
        return Ownership(sizes=sizes, ranks=self.grid.world.size)

    @cached_property
    def _matrices(self) -> dict[str, tuple[int, int]]:
        return {name: matrix(shape) for name, shape in self.shapes.items()}

    @cached_property
    def _owned(self) -> list[dict[str, Range]]:
        return [self.ownership.owned(rank) for rank in range(self.grid.world.size)]

    @property
    def _me(self) -> int:
        return self.grid.world.rank

    @property
    def _others(self) -> list[int]:
        return [rank for rank in range(self.grid.world.size) if rank != self._me]

    @property
    def owned(self) -> dict[str, Range]:
        """What this rank updates."""
        return self._owned[self._me]

    def take(self, name: str, whole: Tensor) -> Tensor:
        """This rank's range of a whole tensor, in memory of its own: (1, n) of a matrix, (n) of a vector."""
        start, stop = self.owned[name]
        return self._shaped(name, whole.reshape(-1)[start:stop].clone())

    def _shaped(self, name: str, flat: Tensor) -> Tensor:
        return flat if len(self.shapes[name]) == 1 else flat.view(1, -1)

    def _common(self, owner: int, place: int) -> Route:
        """What a rank updates of the blocks with which a place computes."""
        return [
            self._piece(name, block)
            for name, span in self._owned[owner].items()
            for block in met(span, self.holding(name, place), self._matrices[name][1])
        ]

    def _piece(self, name: str, block: Block) -> Piece:
        mine = self.holding(name, self.grid.place)
        return Piece(
            name=name,
            block=block,
            held=(mine.rows[1] - mine.rows[0], mine.columns[1] - mine.columns[0]),
            within=block.within(mine),
            start=self.owned[name][0],
            width=self._matrices[name][1],
        )

    def _gradient_route(self, rank: int, owner: int) -> Route:
        """What a rank gives to an owner; a tensor that every place has whole comes from the owner's own place."""
        place = self.grid.place_of(rank)
        mine = place == self.grid.place_of(owner)
        return [piece for piece in self._common(owner, place) if mine or piece.name not in self.copied]

    @cached_property
    def copied(self) -> list[str]:
        """Tensors that every place has whole."""
        places, sizes = range(self.grid.tensor), self.ownership.sizes
        return [name for name in sizes if all(self.holding(name, place).size == sizes[name] for place in places)]

    @cached_property
    def _given(self) -> list[Route]:
        """Gradients from this rank to each."""
        return [self._gradient_route(self._me, owner) for owner in range(self.grid.world.size)]

    @cached_property
    def _taken(self) -> list[Route]:
        """Gradients from each rank to this one."""
        return [self._gradient_route(rank, self._me) for rank in range(self.grid.world.size)]

    @cached_property
    def _lent(self) -> list[Route]:
        """Weights from this rank to each."""
        return [self._common(self._me, self.grid.place_of(rank)) for rank in range(self.grid.world.size)]

    @cached_property
    def _borrowed(self) -> list[Route]:
        """Weights from each rank to this one."""
        return [self._common(owner, self.grid.place) for owner in range(self.grid.world.size)]

    def to_owners(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tree over all copies of this rank's ranges. `gradients`: float32, of this rank's blocks."""
        like = next(iter(gradients.values()))
        sends = [
            (_packed([each.of_block(gradients) for each in self._given[owner]], like), owner) for owner in self._others
        ]
        coming = {rank: like.new_empty(_size(self._taken[rank])) for rank in self._others}
        pending = self.grid.world.group.post(GRADIENTS, sends, [(flat, rank) for rank, flat in coming.items()])
        coming[self._me] = _packed([each.of_block(gradients) for each in self._given[self._me]], like)
        pending.wait()
        totals = tree_sum([self._assembled(coming, copy, like) for copy in range(self.grid.data)])
        return self._ranges(totals)

    def _ranges(self, flat: Tensor) -> dict[str, Tensor]:
        """All ranges of this rank, which lie end to end, by name."""
        lengths = [stop - start for start, stop in self.owned.values()]
        pieces = zip(self.owned, torch.split(flat, lengths), strict=True)
        return {name: self._shaped(name, piece) for name, piece in pieces}

    def _assembled(self, coming: Mapping[int, Tensor], copy: int, like: Tensor) -> Tensor:
        """One copy's gradients of all ranges of this rank, end to end."""
        if self.grid.tensor == 1:
            return coming[copy]
        flat = like.new_empty(sum(stop - start for start, stop in self.owned.values()))
        ranges = self._ranges(flat)
        for rank in range(copy * self.grid.tensor, (copy + 1) * self.grid.tensor):
            _spread(coming[rank], [each.of_range(ranges) for each in self._taken[rank]])
        return flat

    def to_blocks(self, ranges: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The block of every tensor with which this rank computes, from the ranges that ranks have updated."""
        like = next(iter(ranges.values()))
        sends = [(_packed([each.of_range(ranges) for each in self._lent[rank]], like), rank) for rank in self._others]
        coming = {rank: like.new_empty(_size(self._borrowed[rank])) for rank in self._others}
        pending = self.grid.world.group.post(WEIGHTS, sends, [(flat, rank) for rank, flat in coming.items()])
        blocks = {name: self._empty(name, like) for name in ranges}
        for each in self._lent[self._me]:
            each.of_block(blocks).copy_(each.of_range(ranges))
        pending.wait()
        for rank, flat in coming.items():
            _spread(flat, [each.of_block(blocks) for each in self._borrowed[rank]])
        return blocks

    def _empty(self, name: str, like: Tensor) -> Tensor:
        held = self.holding(name, self.grid.place)
        rows, columns = held.rows[1] - held.rows[0], held.columns[1] - held.columns[0]
        return like.new_empty((columns,) if len(self.shapes[name]) == 1 else (rows, columns))

    def to_first(self, ranges: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor] | None:
        """Whole tensors on rank 0, None on the others, one at a time. `names`: whose ranges each entry has."""
        group, found = self.grid.world.group, {}
        for key, tensor in ranges.items():
            if self._me:
                group.exchange(RECORD, sends=[(tensor, 0)])
                continue
            name = names[key]
            flat = tensor.new_empty(self.ownership.sizes[name])
            spans = [flat[slice(*self._owned[rank][name])] for rank in range(self.grid.world.size)]
            spans[0].copy_(tensor.view(-1))
            group.exchange(RECORD, receives=list(zip(spans[1:], self._others, strict=True)))
            found[key] = flat.view(self.shapes[name])
        return None if self._me else found


def _size(route: Route) -> int:
    return sum(piece.block.size for piece in route)


def _packed(pieces: Sequence[Tensor], like: Tensor) -> Tensor:
    """End to end."""
    return torch.cat([piece.reshape(-1) for piece in pieces]) if pieces else like.new_empty(0)


def _spread(message: Tensor, targets: Sequence[Tensor]) -> None:
    """A message's numbers into their places."""
    for piece, target in zip(torch.split(message, [target.numel() for target in targets]), targets, strict=True):
        target.copy_(piece.view(target.shape))
