"""Exact sums: the float32 nearest to the true sum, for any number of ranks and any layout of the parts over them."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from tests.parallel.ranks import on_ranks
from torch import Tensor

from samebits.numerics.recipes import make
from samebits.parallel import collectives, exact
from samebits.parallel.world import Group, World

LARGEST = float(np.finfo(np.float32).max)
LEAST = 2.0**-149
PARTS, LENGTH = 24, 200


def nearest(total: Fraction) -> float:
    """The float32 nearest to a fraction, ties to even, by comparing neighbours: knows no digits."""
    if abs(total) >= Fraction(LARGEST) + Fraction(2) ** 103:
        return math.copysign(math.inf, total)
    with np.errstate(over="ignore"):
        guess = np.float32(float(total))
        near = [guess, np.nextafter(guess, np.float32(np.inf)), np.nextafter(guess, np.float32(-np.inf))]
    finite = [value for value in near if np.isfinite(value)]
    best = min(finite, key=lambda value: (abs(Fraction(float(value)) - total), int(value.view(np.int32)) & 1))
    return float(best) + 0.0


def all_parts(recipe: str, seed: int = 5) -> Tensor:
    return torch.from_numpy(make(recipe, (LENGTH, PARTS), seed)).T.contiguous()


def wanted(parts_PN: Tensor) -> Tensor:
    return torch.tensor([nearest(sum(map(Fraction, column), Fraction(0))) for column in parts_PN.T.tolist()])


def same(got: Tensor, expected: Tensor) -> bool:
    return torch.equal(got.view(torch.int32), expected.view(torch.int32))


ALONE = World().group
HARD = {
    "cancelled to the least": [LARGEST, LEAST, -LARGEST],
    "subnormals": [LEAST, 3 * LEAST, 2.0**-126, -(2.0**-127)],
    "a subnormal from normals": [2.0**-126, -(2.0**-126) + LEAST],
    "tie to even, down": [1.0, 2.0**-24],
    "tie to even, up": [1.0 + 2.0**-23, 2.0**-24],
    "a tie that the least part breaks": [1.0, 2.0**-24, LEAST],
    "a tie that the least part breaks downwards": [1.0 + 2.0**-23, 2.0**-24, -LEAST],
    "the tie of a double rounding": [1.0, 2.0**-24, 2.0**-60],
    "largest stays": [LARGEST, 2.0**102],
    "largest overflows at the tie": [LARGEST, 2.0**103],
    "just below that": [LARGEST, 2.0**103, -LEAST],
    "back from beyond": [LARGEST, LARGEST, LARGEST, -LARGEST, -LARGEST],
    "minus beyond": [-LARGEST, -LARGEST],
    "negative zeros": [-0.0, -0.0],
    "no sum left": [3.5, -3.5],
    "nothing": [],
}


@pytest.mark.parametrize("name", HARD)
def test_hard_sums(name: str) -> None:
    parts = HARD[name]
    got = exact.exact_sum(ALONE, torch.tensor(parts, dtype=torch.float32).reshape(-1, 1))
    assert same(got, torch.tensor([nearest(sum(map(Fraction, parts), Fraction(0)))]))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [([1.0, math.inf], "inf"), ([-math.inf, 1.0], "-inf"), ([math.inf, -math.inf], "nan"), ([math.nan, 1.0], "nan")],
)
def test_what_is_no_number_propagates(parts: list[float], expected: str) -> None:
    """inf + x = inf, inf - inf = NaN, NaN + x = NaN; a neighbour keeps its sum."""
    columns = torch.tensor([parts, [1.0, 2.0]]).T
    got = exact.exact_sum(ALONE, columns)
    assert str(float(got[0])) == expected and float(got[1]) == 3.0


@pytest.mark.parametrize("recipe", ["normal", "wide", "cancelling", "subnormal", "any_bits"])
def test_random_sums(recipe: str) -> None:
    parts_PN = (
        any_finite()
        if recipe == "any_bits"
        else all_parts("normal") * LEAST * 9
        if recipe == "subnormal"
        else (all_parts(recipe))
    )
    got = exact.exact_sum(ALONE, parts_PN)
    assert same(got, wanted(parts_PN))
    # Many parts at a time are carried in between.
    assert same(exact.exact_sum(ALONE, parts_PN.repeat(1024, 1)), wanted(parts_PN.double() * 1024))


def any_finite() -> Tensor:
    """Every exponent, subnormals included; the infinities and NaN left out."""
    words = torch.randint(-(2**31), 2**31, (PARTS, LENGTH), generator=torch.Generator().manual_seed(3))
    values = words.to(torch.int32).view(torch.float32)
    return torch.where(values.isfinite(), values, 1.0)


def test_equal_to_fsum() -> None:
    """math.fsum rounds to float64 first; away from ties that is the same."""
    parts_PN = all_parts("cancelling")
    expected = torch.tensor([math.fsum(column) for column in parts_PN.T.tolist()])
    assert same(exact.exact_sum(ALONE, parts_PN), expected)


def summed(world: World) -> list[Tensor]:
    """All parts dealt out in turn, all on the last rank, and dealt within the ranks of even number."""
    parts_PN, dealt = all_parts("cancelling"), torch.arange(PARTS) % world.size == world.rank
    found = [exact.exact_sum(world.group, parts_PN[dealt])]
    last = world.rank == world.size - 1
    found.append(exact.exact_sum(world.group, parts_PN[PARTS if not last else 0 :]))
    even = tuple(range(0, world.size, 2))
    if world.rank in even:
        group = Group(world=world, members=even)
        found.append(exact.exact_sum(group, parts_PN[torch.arange(PARTS) % group.size == group.place]))
    return found


def summed_as_floats(world: World) -> Tensor:
    """Planted fault: the same parts by the tree, whose result knows how they are dealt out."""
    parts_PN = all_parts("cancelling")[torch.arange(PARTS) % world.size == world.rank]
    return collectives.all_reduce(world.group, collectives.tree_sum(list(parts_PN.clone())))


def test_ranks_and_layout_reach_no_bit() -> None:
    """exact(any layout, any number of ranks) == the float32 nearest to the sum; the tree depends on both."""
    expected = wanted(all_parts("cancelling"))
    floats = []
    for size in (1, 2, 3, 4):
        for found in on_ranks(size, summed):
            assert all(same(each, expected) for each in found) and len(found) in (2, 3)
        floats.append(on_ranks(size, summed_as_floats)[0])
    assert not any(same(each, expected) for each in floats)
    assert not same(floats[1], floats[2])


def test_a_dropped_digit_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: what lies below the two highest digits is forgotten, so a tie goes the wrong way."""
    real = exact._magnitude

    def without_the_lowest(digits_DN: Tensor) -> Tensor:
        digits_DN[0] = 0
        return real(digits_DN)

    monkeypatch.setattr(exact, "_magnitude", without_the_lowest)
    got = exact.exact_sum(ALONE, torch.tensor(HARD["a tie that the least part breaks"]).reshape(-1, 1))
    assert float(got) == 1.0


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (torch.zeros(3), r"parts have shape \(3,\) torch.float32; allowed: 2 dimensions, torch.float32"),
        (torch.zeros(3, 1).double(), r"parts have shape \(3, 1\) torch.float64; allowed"),
        (torch.zeros(1, 1).expand(2**25 + 1, 1), "33554433 parts on one of 1 ranks; allowed: 16384 ranks, 33554432"),
    ],
)
def test_refused(parts: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        exact.exact_sum(ALONE, parts)
