"""Inputs of the portable goldens: from counters alone, so that every machine draws the same ones.

What is drawn depends on the name of the case, the recipe and how many were drawn before: a new case changes no other.
Knows no operator."""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
import torch
from torch import Tensor

from samebits.numerics.bits import round_to
from samebits.numerics.elementary.philox import philox_uint32
from samebits.numerics.recipes import make

# Part of the record: another way to draw is another record.
GENERATOR: Final = "philox4x32-10, samebits.numerics.recipes 1, samebits.parity.portable 1"
RECIPES: Final = ("normal", "wide", "zeros_signed", "tiny")
# `tiny` is the recipe "normal" times this: about half of its numbers are subnormal.
_TINY: Final = {"float32": 2.0**-127, "bfloat16": 2.0**-127, "float16": 2.0**-15}


class Draw:
    """Numbers for one case, one after another."""

    def __init__(self, case: str, recipe: str, format: str, device: torch.device) -> None:
        self.case, self.recipe, self.format, self.device = case, recipe, format, device
        self.dtype: torch.dtype = getattr(torch, format)
        self._drawn = 0

    def _seed(self) -> int:
        self._drawn += 1
        return int.from_bytes(hashlib.sha256(f"{self.case} {self.recipe} {self._drawn}".encode()).digest()[:8])

    def _values(self, shape: tuple[int, ...], format: str) -> Tensor:
        if self.recipe != "tiny":
            return torch.from_numpy(make(self.recipe, shape, self._seed(), format))
        # In float64 the product is exact, and it is rounded once.
        values = make("normal", shape, self._seed(), format).astype(np.float64) * _TINY[format]
        return torch.from_numpy(round_to(values.astype(np.float32), format))

    def tensor(self, *shape: int) -> Tensor:
        """In the format of the case."""
        return self._values(shape, self.format).to(self.dtype).to(self.device)

    def wide(self, *shape: int) -> Tensor:
        """In float32, whatever the format."""
        return self._values(shape, "float32").to(self.device)

    def like(self, other: Tensor) -> Tensor:
        """A tensor of its shape and dtype."""
        format = str(other.dtype).removeprefix("torch.")
        return self._values(tuple(other.shape), format).to(other.dtype).to(self.device)

    def numbers(self, bound: int, *shape: int) -> Tensor:
        """int64 in 0 .. bound - 1."""
        words = philox_uint32(self._seed(), 0, int(np.prod(shape))).astype(np.int64)
        return torch.from_numpy((words * bound >> 32).reshape(shape)).to(self.device)
