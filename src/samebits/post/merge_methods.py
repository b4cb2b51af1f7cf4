"""The arithmetic of merging, on pieces of tensors: linear, SLERP, task arithmetic, TIES, DARE.

Every operation on an element is one of IEEE 754's, rounded to the recipe's dtype as mergekit rounds it, models in the
recipe's order. What is taken over a whole tensor (a norm, a cosine, a threshold) is a sum in a declared order or a
count, so that neither threads nor shards nor the size of a piece decide a bit. Knows no file."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from samebits.numerics.elementary import philox_uint32_native
from samebits.numerics.exactly import arc_cosine, sine
from samebits.ops.unrounded import unrounded

# Decides bits: numbers in one balanced tree of a sum over a tensor, and in one stream of random words.
BLOCK: Final = 2**15
# A shorter tensor has no direction.
SHORTEST: Final = 1e-8
# Beyond this cosine the way is straight, as mergekit has it: what that takes from the norm is at most 1.3e-4 of it.
STRAIGHT: Final = 0.9995
# Directions nearer to opposite than this (an angle of pi - 1e-4) have no shortest way between them.
NEVER_OPPOSITE: Final = -0.999999995
# Weights whose sum is smaller in magnitude are not divided by.
SMALLEST_SUM: Final = 1e-8


def linear(pieces: Sequence[Tensor], weights: Sequence[float], normalize: bool) -> Tensor:
    """Sum of weight times model, over the sum of the weights: the chain of `matmul` over the models in float32, then
    one quotient. float64 has no such chain: there each product and each sum is rounded by itself."""
    wide = _wide(pieces[0].dtype)
    factors = torch.tensor(weights, dtype=wide)
    if wide == torch.float64:
        total = _sum([piece * factor for piece, factor in zip(pieces, factors, strict=True)], wide)
    else:
        total = unrounded(factors[None], torch.stack([piece.to(wide) for piece in pieces]), "cpu")[0]
    if normalize:
        total /= _sum(list(factors), wide)
    return total.to(pieces[0].dtype)


def slerp(first: Tensor, second: Tensor, factors: tuple[float, float]) -> Tensor:
    """factors[0] * first + factors[1] * second; float32 inside, float64 for float64."""
    wide = _wide(first.dtype)
    one, two = torch.tensor(factors, dtype=wide)
    mixed: Tensor = first.to(wide) * one + second.to(wide) * two
    return mixed.to(first.dtype)


def slerp_factors(cosine: float, t: float) -> tuple[float, float]:
    """What the two models are multiplied by: sin((1 - t) a) / sin(a) and sin(t a) / sin(a), for the angle a; 1 - t and
    t, a straight line, where the angle is next to nothing or next to half a turn."""
    if cosine < NEVER_OPPOSITE:
        raise ValueError(f"slerp: the cosine between the tensors is {cosine}; allowed: at least {NEVER_OPPOSITE}")
    if abs(cosine) > STRAIGHT:
        return 1.0 - t, t
    angle = arc_cosine(cosine)
    whole = sine(angle)
    return sine((1.0 - t) * angle) / whole, sine(t * angle) / whole


class Cosine:
    """The cosine of the angle between two tensors that come in whole blocks of BLOCK numbers, but for the last.

    Products in float64, where they are exact for float32; each block a balanced tree over it, padded with zeros; the
    blocks' sums added exactly and rounded once."""

    def __init__(self) -> None:
        self._sums: list[list[float]] = [[], [], []]

    def add(self, first: Tensor, second: Tensor) -> None:
        for one, two in zip(torch.split(first, BLOCK), torch.split(second, BLOCK), strict=True):
            self._add_block(one, two)

    def _add_block(self, first: Tensor, second: Tensor) -> None:
        one, two = first.double().numpy(), second.double().numpy()
        terms = np.zeros((3, 1 << (len(one) - 1).bit_length()))
        # What overflows is refused in the end, by `value`.
        with np.errstate(over="ignore"):
            for products, (left, right) in zip(terms, ((one, one), (two, two), (one, two)), strict=True):
                np.multiply(left, right, out=products[: len(one)])
            for sums, total in zip(self._sums, _trees(terms), strict=True):
                sums.append(total)

    def value(self) -> float:
        """0 where one of the two is so short that it has no direction."""
        try:
            first, second, both = (math.fsum(sums) for sums in self._sums)
        except (OverflowError, ValueError):
            first = second = both = math.inf
        if not math.isfinite(first + second):
            raise ValueError(
                "slerp: the squares of a tensor add up to more than float64 holds; allowed: smaller numbers"
            )
        lengths = math.sqrt(first), math.sqrt(second)
        if not min(lengths) > SHORTEST:
            return 0.0
        return both / lengths[0] / lengths[1]


def _trees(terms: np.ndarray) -> list[float]:
    """The sum of each row by halves: term i and term i + half, until one is left.

    A row has BLOCK terms, zeros behind those that there are; halves of nothing but zeros change no sum and are left
    out."""
    while terms.shape[1] > 1:
        half = terms.shape[1] // 2
        terms = terms[:, :half] + terms[:, half:]
    # A sum of zeros is +0, as it is with zeros behind them.
    return [float(total) + 0.0 for total in terms[:, 0]]


@dataclass(frozen=True, slots=True)
class Threshold:
    """What is kept of a tensor: magnitudes above `pattern`, and of those equal to it the first `equal` by index."""

    pattern: int
    equal: int


def magnitudes(delta: Tensor) -> Tensor:
    """The pattern of each number's magnitude, in float64 of that format and else in float32, as an integer: it grows
    with the magnitude, NaN above all."""
    if delta.dtype == torch.float64:
        return delta.abs().view(torch.int64)
    return delta.abs().float().view(torch.int32)


def threshold(passes: Callable[[], Iterable[Tensor]], keep: int, bits: int = 32) -> Threshold:
    """The threshold that keeps exactly `keep` numbers; `passes` gives the magnitudes piece by piece, once for every 16
    of their bits or until all bits below are zero."""
    if keep == 0:
        return Threshold(2 ** (bits - 1) - 1, 0)
    found, left = 0, keep
    for shift in range(bits - 16, -1, -16):
        counts, exact = np.zeros(2**16, np.int64), True
        for piece in passes():
            numbers = piece.numpy()
            if shift + 16 < bits:
                numbers = numbers[numbers >> shift + 16 == found]
            counts += np.bincount(numbers >> shift & 0xFFFF, minlength=2**16)
            exact = exact and not (numbers & (1 << shift) - 1).any()
        digit, above = _bin(counts, left)
        found, left = found << 16 | digit, left - above
        if exact:
            break
    return Threshold(found << shift, left)


def _bin(counts: np.ndarray, keep: int) -> tuple[int, int]:
    """The bin, from the top, in which number `keep` is, and how many are in the bins above."""
    reached = np.add.accumulate(counts[::-1])
    place = int(np.searchsorted(reached, keep))
    return len(counts) - 1 - place, int(reached[place] - counts[::-1][place])


class Trim:
    """TIES: keeps the largest numbers of a tensor, piece after piece in order; all others become zero."""

    def __init__(self, limit: Threshold) -> None:
        self._limit, self._seen = limit, 0

    def __call__(self, delta: Tensor) -> Tensor:
        found = magnitudes(delta)
        equal = found == self._limit.pattern
        # Whole numbers: a running count rounds nothing.
        place = torch.cumsum(equal, 0) + self._seen
        self._seen = int(place[-1])
        return delta * ((found > self._limit.pattern) | (equal & (place <= self._limit.equal))).to(delta.dtype)


def kept(density: float, count: int) -> int:
    """How many numbers of a tensor TIES keeps: at least one, if any."""
    return 0 if density <= 0 else min(count, max(1, int(density * count)))


class Drop:
    """DARE: keeps each number with probability `density`, by random words that depend on seed, model, tensor and index
    alone; divides what is kept by the density. Takes whole blocks of BLOCK numbers in order, but for the last."""

    def __init__(self, seed: int, stream: str, density: float, rescale: bool) -> None:
        self._key = int.from_bytes(hashlib.sha256(f"{seed} {stream}".encode()).digest()[:8])
        self._block, self._density, self._rescale = 0, density, rescale

    def __call__(self, delta: Tensor) -> Tensor:
        words = []
        for start in range(0, len(delta), BLOCK):
            words.append(philox_uint32_native(self._key, self._block, min(BLOCK, len(delta) - start)))
            self._block += 1
        chosen = torch.from_numpy(np.concatenate(words) < self._density * 2.0**32)
        dropped = delta * chosen.to(delta.dtype)
        return dropped / self._density if self._rescale and self._density > 0 else dropped


def combine(base: Tensor, deltas: Sequence[Tensor], weights: Sequence[float], how: Combining) -> Tensor:
    """The base plus what its differences to the others come to."""
    dtype, wide = base.dtype, _wide(base.dtype)
    factors = list(torch.tensor(weights, dtype=dtype))
    weighted = [delta * factor for delta, factor in zip(deltas, factors, strict=True)]
    if how.elect:
        positive = _sum(weighted, wide).to(dtype) >= 0
        agreeing = [torch.where(positive, each > 0, each < 0).to(dtype) for each in weighted]
        mixed = _sum([each * mask for each, mask in zip(weighted, agreeing, strict=True)], wide).to(dtype)
        divisor = _sum([factor * mask for factor, mask in zip(factors, agreeing, strict=True)], wide).to(dtype)
        divisor = torch.where(divisor == 0, torch.ones_like(divisor), divisor)
    else:
        mixed = _sum(weighted, wide).to(dtype)
        divisor = _sum(factors, wide).to(dtype)
        divisor = torch.where(divisor.abs() < SMALLEST_SUM, torch.ones_like(divisor), divisor)
    if how.normalize:
        mixed = mixed / divisor
    if how.scale != 1.0:
        mixed = mixed * how.scale
    return base + mixed


@dataclass(frozen=True, kw_only=True, slots=True)
class Combining:
    """How differences are put together: with or without an elected sign, over the sum of the weights or not."""

    elect: bool
    normalize: bool
    scale: float


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _sum(terms: Sequence[Tensor], wide: torch.dtype) -> Tensor:
    """From zero, in their order, rounded once more by whoever stores it."""
    total = torch.zeros_like(terms[0], dtype=wide)
    for term in terms:
        total = total + term.to(wide)
    return total
