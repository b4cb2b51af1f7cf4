"""Where the numbers of a tensor lie among ranks: blocks that ranks compute with, flat ranges that ranks update.

Pure functions of whole numbers. A tensor is (rows, columns), a vector one row. Flat ranges begin at multiples of the
gradient norm's pieces, so that each of its partial sums has one rank and the norm the bits of one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from samebits.ops.grad_norm.reference import PIECE

Range = tuple[int, int]
"""From, and up to but not including."""
NOTHING: Final[Range] = (0, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Consecutive rows and columns of a tensor."""

    rows: Range
    columns: Range

    @property
    def size(self) -> int:
        return (self.rows[1] - self.rows[0]) * (self.columns[1] - self.columns[0])

    def within(self, other: Block) -> tuple[slice, slice]:
        """This block as a part of another one that holds it."""
        row, column = other.rows[0], other.columns[0]
        return (
            slice(self.rows[0] - row, self.rows[1] - row),
            slice(self.columns[0] - column, self.columns[1] - column),
        )


def matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """A shape as rows and columns."""
    return (1, shape[0]) if len(shape) == 1 else (shape[0], shape[1])


def whole(shape: tuple[int, ...]) -> Block:
    rows, columns = matrix(shape)
    return Block(rows=(0, rows), columns=(0, columns))


def met(span: Range, held: Block, width: int) -> list[Block]:
    """What a flat range of a tensor of this width and a block have in common: parts of at most one row at either end,
    and whole rows of the block between them; ascending."""
    start, stop = span
    if start >= stop or not held.size:
        return []
    first, last = start // width, (stop - 1) // width
    if first == last:
        return _cut(held, (first, first + 1), (start - first * width, stop - first * width))
    head = _cut(held, (first, first + 1), (start - first * width, width))
    tail = _cut(held, (last, last + 1), (0, stop - last * width))
    return head + _cut(held, (first + 1, last), (0, width)) + tail


def _cut(held: Block, rows: Range, columns: Range) -> list[Block]:
    common = Block(
        rows=(max(held.rows[0], rows[0]), min(held.rows[1], rows[1])),
        columns=(max(held.columns[0], columns[0]), min(held.columns[1], columns[1])),
    )
    empty = common.rows[0] >= common.rows[1] or common.columns[0] >= common.columns[1]
    return [] if empty else [common]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ownership:
    """Which rank updates which numbers: consecutive pieces of consecutive tensors, about as many numbers each."""

    sizes: Mapping[str, int]
    """Numbers of each tensor, in the order of the gradient norm."""
    ranks: int

    def pieces(self) -> list[tuple[str, Range]]:
        """Every piece of the norm's sum in its order, as a flat range of its tensor."""
        return [
            (name, (start, min(start + PIECE, size)))
            for name, size in self.sizes.items()
            for start in range(0, size, PIECE)
        ]

    def cuts(self) -> list[int]:
        """Where each rank's pieces begin, and the end of the last: the first piece at or after its share of numbers."""
        total, done, found = sum(self.sizes.values()), 0, [0]
        pieces = self.pieces()
        for number, (_, (start, stop)) in enumerate(pieces):
            while len(found) < self.ranks and done * self.ranks >= total * len(found):
                found.append(number)
            done += stop - start
        return found + [len(pieces)] * (self.ranks + 1 - len(found))

    def owned(self, rank: int) -> dict[str, Range]:
        """A rank's range of each tensor, empty where it has none."""
        cuts = self.cuts()
        found = dict.fromkeys(self.sizes, NOTHING)
        for name, (start, stop) in self.pieces()[cuts[rank] : cuts[rank + 1]]:
            found[name] = (start if found[name] == NOTHING else found[name][0], stop)
        return found
