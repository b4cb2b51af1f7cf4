"""Blocks, ranges and pieces as whole numbers, and the norm over them: every number has one place on every way."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samebits.numerics.recipes import make
from samebits.ops.grad_norm import grad_norm
from samebits.ops.grad_norm.reference import PIECE
from samebits.parallel.grad_norm import norm_of, piece_sums
from samebits.parallel.layout import Block, Ownership, met
from samebits.parallel.world import World

SHAPES = {"matrix": (300, 700), "vector": (5,), "small": (3, 7), "long": (2 * PIECE + 1,)}


def numbers(block: Block, width: int) -> list[int]:
    """Where a block's numbers lie in the flat tensor."""
    return [row * width + column for row in range(*block.rows) for column in range(*block.columns)]


@given(st.data())
def test_what_a_range_and_a_block_have_in_common(data: st.DataObject) -> None:
    """met(range, block) as sets of places, each once, ascending."""
    rows, width = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    (top, bottom), (left, right), (start, stop) = (
        sorted(data.draw(st.tuples(st.integers(0, most), st.integers(0, most)))) for most in (rows, width, rows * width)
    )
    held = Block(rows=(top, bottom), columns=(left, right))
    found = [place for block in met((start, stop), held, width) for place in numbers(block, width)]
    assert found == [place for place in numbers(held, width) if start <= place < stop]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 40])
def test_every_number_has_one_owner(ranks: int) -> None:
    """Ranges of consecutive ranks follow each other, and begin where a piece of the norm does."""
    sizes = {name: torch.Size(shape).numel() for name, shape in SHAPES.items()}
    ownership = Ownership(sizes=sizes, ranks=ranks)
    for name, size in sizes.items():
        spans = [span for span in (ownership.owned(rank)[name] for rank in range(ranks)) if span != (0, 0)]
        assert spans[0][0] == 0 and spans[-1][1] == size
        assert all(before[1] == after[0] for before, after in pairwise(spans))
        assert all(start % PIECE == 0 for start, _ in spans)


def test_the_norm_of_pieces_is_that_of_tensors() -> None:
    """All of them, and some; planted: pieces added one after the other."""
    tensors = {name: torch.from_numpy(make("normal", shape, 7 + len(name))) for name, shape in SHAPES.items()}
    ownership = Ownership(sizes={name: each.numel() for name, each in tensors.items()}, ranks=1)
    sums = piece_sums(World().group, ownership, tensors)
    assert norm_of(sums, ownership).view(torch.int32) == grad_norm(tensors.values()).view(torch.int32)
    some = norm_of(sums, ownership, ["matrix", "long"])
    assert some.view(torch.int32) == grad_norm([tensors["matrix"], tensors["long"]]).view(torch.int32)
    many = torch.from_numpy(make("normal", (3000,), 3)).abs()
    pieces = Ownership(sizes={"whole": 3000 * PIECE}, ranks=1)
    total = torch.zeros(())
    for each in many:
        total = total + each
    assert norm_of(many, pieces) != total.sqrt()
