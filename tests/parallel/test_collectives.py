"""Sums over real ranks: the declared order, whatever the message's size; the backend's own beside it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from tests.parallel.ranks import RankFailedError, on_ranks
from torch import Tensor

from samebits.numerics.recipes import make
from samebits.parallel import collectives
from samebits.parallel.world import Group, World

LENGTHS = (0, 1, 7, 1000)
ROWS, WIDTH = 300, 3  # three tiles of a chain


def part(rank: int, *shape: int) -> Tensor:
    return torch.from_numpy(make("normal", shape, 100 + rank))


def same(got: Tensor, wanted: Tensor) -> bool:
    return got.shape == wanted.shape and torch.equal(got.view(torch.int32), wanted.view(torch.int32))


def tree(size: int, length: int) -> Tensor:
    return collectives.tree_sum([part(rank, length) for rank in range(size)])


def uneven(length: int, size: int) -> list[int]:
    """From two ranks on the first holds nothing, the last one most, those between one element or none."""
    return [0, *(min(place, length) for place in range(size - 1)), length]


def summed(world: World) -> dict[str, Any]:
    """Every collective once, for every length; what it gave and what it sent."""
    found: dict[str, Any] = {}
    group, place = world.group, world.rank
    for length in LENGTHS:
        world.sent.clear()
        found[f"all_reduce {length}"] = collectives.all_reduce(group, part(place, length))
        found[f"sent {length}"] = world.sent.total()
        cuts = uneven(length, world.size)
        piece = collectives.reduce_scatter(group, part(place, length), cuts)
        whole = torch.full((length,), torch.nan)
        whole[cuts[place] : cuts[place + 1]] = piece
        found[f"reduce_scatter {length}"] = collectives.gather(group, whole, cuts)
    found["native"] = collectives.native_all_reduce(group, part(place, 1000))
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_sums_are_the_tree(size: int) -> None:
    """all_reduce and reduce_scatter, even and uneven, == the tree on one process; the backend's is not, from 3 on."""
    for rank, found in enumerate(on_ranks(size, summed)):
        for length in LENGTHS:
            assert same(found[f"all_reduce {length}"], tree(size, length))
            assert same(found[f"reduce_scatter {length}"], tree(size, length))
            cuts = collectives.even_cuts(length, size)
            own = cuts[rank + 1] - cuts[rank]
            assert found[f"sent {length}"] == 4 * (length - own + own * (size - 1))
        assert same(found["native"], tree(size, 1000)) == (size < 3)


def travelled(world: World, rounds_more: bool) -> dict[str, Any]:
    """A chain over rows of every rank, of which one rank has none; columns gathered; a broadcast; a group of two."""
    own_MN = part(world.rank, ROWS, WIDTH)

    def add(rows: slice, sum_TN: Tensor) -> None:
        if world.rank == 1:
            return
        if rounds_more and world.rank == 2:
            sum_TN.copy_(sum_TN + (own_MN[rows] + 0.5) - 0.5)
        else:
            sum_TN.add_(own_MN[rows])

    found: dict[str, Any] = {
        "chain": collectives.chain(world.group, (ROWS, WIDTH), add, partial(torch.mul, other=2.0), like=own_MN),
        "no rows": collectives.chain(world.group, (0, WIDTH), add, torch.clone, like=own_MN),
        "bfloat16": collectives.chain(
            world.group, (ROWS, WIDTH), add, lambda sum_TN: sum_TN.bfloat16(), like=own_MN.bfloat16()
        ),
    }
    widths = [2, 0, 3, 1][: world.size]
    columns = part(world.rank, ROWS, 3)[:, : widths[world.rank]]
    found["columns"] = collectives.gather_columns(world.group, columns, widths)
    found["broadcast"] = collectives.broadcast(world.group, part(world.rank, 5), world.size - 1)
    pair = (world.size - 1, 0)
    if world.rank in pair:
        found["pair"] = collectives.all_reduce(Group(world=world, members=pair), part(world.rank, 9))
    return found


def one_chain(size: int) -> Tensor:
    total = torch.zeros(ROWS, WIDTH)
    for rank in range(size):
        total += part(rank, ROWS, WIDTH) if rank != 1 else 0.0
    return total


@pytest.mark.parametrize("size", [2, 3, 4])
def test_chains_travel_and_pieces_are_gathered(size: int) -> None:
    """chain == the loop over ranks, finished once, though rank 1 has nothing to add; gathered pieces are copies."""
    widths = [2, 0, 3, 1][:size]
    columns = torch.cat([part(rank, ROWS, 3)[:, : widths[rank]] for rank in range(size)], dim=1)
    for rank, found in enumerate(on_ranks(size, travelled, False)):
        assert same(found["chain"], one_chain(size) * 2.0)
        assert found["no rows"].shape == (0, WIDTH)
        assert torch.equal(found["bfloat16"].view(torch.int16), one_chain(size).bfloat16().view(torch.int16))
        assert same(found["columns"], columns)
        assert same(found["broadcast"], part(size - 1, 5))
        assert ("pair" in found) == (rank in (0, size - 1))
        if "pair" in found:
            assert same(found["pair"], part(size - 1, 9) + part(0, 9))


def test_a_chain_that_rounds_once_more_is_noticed() -> None:
    """Planted fault: rank 2 rounds its part before it goes on."""
    assert not any(same(found["chain"], one_chain(4) * 2.0) for found in on_ranks(4, travelled, True))


def wrongly_cut(world: World, case: str) -> None:
    if case == "cuts":
        collectives.reduce_scatter(world.group, part(0, 7), [0, 7])
    collectives.gather(world.group, part(0, 4, 2), [0, 4, 8])


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("cuts", r"ranks: cuts are \[0, 7\]; allowed: 3 ascending places from 0 to 7"),
        ("shape", r"ranks: the tensor has shape \(4, 2\); allowed: 1 dimension, dense"),
    ],
)
def test_refused(case: str, words: str) -> None:
    with pytest.raises(RankFailedError, match=words):
        on_ranks(2, wrongly_cut, case)
