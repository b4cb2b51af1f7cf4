"""Blocks whose least number is zero, of both signs: the minimum is the one that ggml's loop comes to first."""

from __future__ import annotations

import math

import torch

from samebits.numerics.bits import same_bits
from samebits.post.grouped import FORMATS, Grouped, round_to_nearest


def first_least(weight: torch.Tensor) -> torch.Tensor:
    """As quantize_row_q4_1_ref has it: another number is taken only where it is less."""
    rows = []
    for row in weight.tolist():
        found = []
        for start in range(0, len(row), 32):
            least = math.inf
            for each in row[start : start + 32]:
                least = each if each < least else least
            found.append(least)
        rows.append(found)
    return torch.tensor(rows).half()


def minimum(found: Grouped) -> torch.Tensor:
    assert found.minimum is not None
    return found.minimum


def test_the_first_zero_is_the_minimum() -> None:
    drawn = torch.randint(0, 3, (200, 96), generator=torch.Generator().manual_seed(2))
    weight = torch.tensor([0.0, -0.0, 1.0])[drawn]
    wanted = first_least(weight)
    assert wanted.signbit().any() and not wanted.signbit().all()
    assert same_bits(minimum(round_to_nearest(weight, FORMATS["q4_1"])), wanted)


def test_either_sign_may_come_first() -> None:
    """The bytes of torch's own reduction were those of the other zero in one of the two blocks."""
    weight = torch.zeros(1, 64)
    weight[0, 0], weight[0, 33:] = -0.0, -0.0
    assert minimum(round_to_nearest(weight, FORMATS["q4_1"])).signbit().tolist() == [[True, False]]
    assert first_least(weight).signbit().tolist() == [[True, False]]
