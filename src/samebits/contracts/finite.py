"""A finite set of inputs, part by part: what a proof by enumeration runs through from the first member to the last.

Knows no operator and runs nothing. A member is a row with what it shares; how many there are is computed apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from samebits.contracts.spec import Arguments

FINITE_BFLOAT16 = 65_280
"""2^16 patterns less 2 * 128 whose exponent is all ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FiniteSet:
    """Every part is one call's arguments; its rows are the members."""

    words: str
    """What is enumerated, with numbers."""
    format: str
    parts: int
    part: Callable[[int], Arguments]
    rows: Callable[[int], int]
    """Members of a part, computed from the definition and not by counting them."""

    @property
    def members(self) -> int:
        return sum(self.rows(number) for number in range(self.parts))


def finite_bfloat16() -> Tensor:
    """Every finite bfloat16, by pattern."""
    values = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16)
    return values[values.isfinite()]


def product(*axes: Tensor) -> Tensor:
    """Every combination of one value from each axis, the last axis fastest: rows of len(axes) values."""
    return torch.stack([axis.reshape(-1) for axis in torch.meshgrid(*axes, indexing="ij")], dim=1)
