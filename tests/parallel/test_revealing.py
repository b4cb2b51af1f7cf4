"""The orders in which collectives add, found by measurement on real ranks, equal to the declared ones, and replayed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tests.parallel.ranks import on_ranks
from torch import Tensor

import samebits
from samebits.numerics.order import Order, canonical, digest, text
from samebits.numerics.recipes import make
from samebits.numerics.reveal import Revelation
from samebits.numerics.simulate import simulate
from samebits.parallel import collectives, revealing
from samebits.parallel.world import Group, World

LENGTHS = (1, 7, 1000, 65537)
# Vectors of each recipe that a position is replayed on; whole messages are replayed beside.
REPLAYS = 5


def uneven_reduce_scatter(group: Group, flat: Tensor) -> Tensor:
    """Pieces of other sizes than all_reduce's: the last rank holds half of the message, the first may hold nothing."""
    length = flat.numel()
    cuts = [*(each // 2 for each in collectives.even_cuts(length, group.size)[:-1]), length]
    collectives.reduce_scatter(group, flat, cuts)
    return collectives.gather(group, flat, cuts)


def travelling_chain(rows: int, group: Group, flat: Tensor) -> Tensor:
    """The message as a matrix of at most so many rows, tile after tile of which travels."""
    rows = min(rows, flat.numel())
    width = flat.numel() // rows
    part_MN, rest = flat[: rows * width].view(rows, width), flat[rows * width :].view(1, -1)
    sums = [
        collectives.chain(group, tuple(each.shape), partial(added, each), torch.clone, like=flat)  # type: ignore[arg-type]
        for each in (part_MN, rest)
    ]
    return torch.cat([each.view(-1) for each in sums])


def added(part_MN: Tensor, rows: slice, sum_TN: Tensor) -> None:
    sum_TN.add_(part_MN[rows])


def starting_at_the_holder(group: Group, flat: Tensor) -> Tensor:
    """Planted fault: a piece's sum begins with the part of the rank that holds the piece."""
    cuts = collectives.even_cuts(flat.numel(), group.size)
    every = [flat.clone() if place == group.place else torch.empty_like(flat) for place in range(group.size)]
    for place, part in enumerate(every):
        collectives.broadcast(group, part, place)
    for holder in range(group.size):
        piece = slice(cuts[holder], cuts[holder + 1])
        flat[piece] = every[holder][piece]
        for step in range(1, group.size):
            flat[piece] += every[(holder + step) % group.size][piece]
    return flat


def wider(group: Group, flat: Tensor) -> Tensor:
    """Planted fault: the tree's shape, its partial sums in float64. Only replaying shows it."""
    return collectives.all_reduce(group, flat.double()).float()


Declared = tuple[revealing.Collective, Callable[[int], Order]]
DECLARED: dict[str, Declared] = {
    "all_reduce": (collectives.all_reduce, revealing.tree_order),
    "reduce_scatter": (uneven_reduce_scatter, revealing.tree_order),
    "chain": (partial(travelling_chain, 300), revealing.chain_order),
}


def positions_of(length: int, size: int) -> list[int]:
    """First, last, and both sides of every cut: so a position in every rank's piece."""
    cuts = collectives.even_cuts(length, size)
    near = {0, length // 2, length - 1, *cuts, *(cut - 1 for cut in cuts)}
    return sorted(position for position in near if 0 <= position < length)


def revealed(group: Group, collective: revealing.Collective, length: int) -> dict[int, Revelation]:
    return revealing.reveal_at(group, collective, length, positions_of(length, group.size), REPLAYS)


def replayed(group: Group, collective: revealing.Collective, order: Order, length: int) -> bool:
    """Whether a whole message is, element by element, what the order says; every element of it a vector of its own."""
    parts = np.stack([make("cancelling", (length,), 40 + place) for place in range(group.size)], axis=-1)
    got = collective(group, torch.from_numpy(parts[:, group.place].copy()))
    wanted = np.asarray(simulate(order, parts), np.float32)
    return bool((got.numpy().view(np.int32) == wanted.view(np.int32)).all())


def judged(world: World) -> dict[tuple[str, int], Any]:
    """For every collective and length: the verdicts and orders over positions, and whether whole messages replay."""
    found: dict[tuple[str, int], Any] = {}
    for name, (collective, order_of) in DECLARED.items():
        for length in LENGTHS:
            results = revealed(world.group, collective, length)
            found[name, length] = (
                {each.verdict for each in results.values()},
                {digest(each.order) for each in results.values() if each.order},
                replayed(world.group, collective, order_of(world.size), length),
            )
    return found


@pytest.mark.parametrize("size", [3, *(pytest.param(size, marks=pytest.mark.long) for size in (2, 4, 5, 8))])
def test_the_order_is_the_declared_one(size: int) -> None:
    """reveal(collective, ranks) == declared order, at every position and length, and it replays whole messages."""
    for found in on_ranks(size, judged):
        for (name, length), (verdicts, orders, replays) in found.items():
            assert verdicts == {"holds"}, (name, length)
            assert orders == {digest(DECLARED[name][1](size))}, (name, length)
            assert replays, (name, length)


def test_declared_orders_in_words() -> None:
    assert [text(revealing.tree_order(size)) for size in (1, 2, 3, 5)] == [
        "0",
        "(0 1)",
        "((0 1) 2)",
        "(((0 1) (2 3)) 4)",
    ]
    assert text(revealing.chain_order(4)) == "(((0 1) 2) 3)"
    assert digest(revealing.tree_order(4)) != digest(revealing.chain_order(4))


def native(world: World) -> dict[tuple[int, int], str]:
    """The backend's own order, by length and position, in words."""
    found = {}
    for length, positions in ((7, [0, 6]), (1000, [0, 6, 999])):
        results = revealing.reveal_at(world.group, collectives.native_all_reduce, length, positions, REPLAYS)
        assert all(each.holds for each in results.values())
        found |= {(length, position): text(canonical(each.order)) for position, each in results.items() if each.order}
    return found


def test_the_backends_own_order_follows_the_message() -> None:
    """Why the native all-reduce promises nothing: an element is added in another order at another place of a message,
    and at the same place of a message of another length."""
    found = on_ranks(4, native)[0]
    assert found[1000, 0] != found[1000, 999]
    assert found[7, 6] != found[1000, 6]
    assert text(revealing.tree_order(4)) not in found.values()


def planted(world: World) -> tuple[set[str], bool, str, bool]:
    order = revealing.tree_order(world.size)
    rotating = revealed(world.group, starting_at_the_holder, 1000)
    wide = revealed(world.group, wider, 7)[0]
    return (
        {digest(each.order) for each in rotating.values() if each.order},
        replayed(world.group, starting_at_the_holder, order, 1000),
        wide.verdict,
        replayed(world.group, wider, order, 1000),
    )


def test_planted_faults_are_noticed() -> None:
    """A sum that begins with its holder's part has an order for every rank; one in float64 does not replay."""
    for orders, rotating_replays, verdict, wide_replays in on_ranks(4, planted):
        assert len(orders) == 4 and not rotating_replays
        assert verdict.startswith("does not hold") and not wide_replays


def by_the_public_function(world: World) -> Revelation:
    summed = revealing.as_callable(world.group, collectives.all_reduce, 1000, 999)
    return samebits.reveal(summed, world.size)[1]


def test_a_user_may_ask_too() -> None:
    """samebits.reveal(as_callable(...), ranks), called on every rank."""
    for found in on_ranks(3, by_the_public_function):
        assert found.holds and digest(found.order) == digest(revealing.tree_order(3))


def wrongly_asked(world: World, position: int, values: int) -> str:
    try:
        revealing.as_callable(world.group, collectives.all_reduce, 7, position)(torch.zeros(values))
    except ValueError as error:
        return str(error)
    return ""


def test_refused() -> None:
    world = World()
    assert wrongly_asked(world, 7, 1) == "asked: positions are [7]; allowed: at least one, from 0 to 6"
    assert wrongly_asked(world, 6, 2) == "asked: values have shape (2,); allowed: one a rank, (1,)"
