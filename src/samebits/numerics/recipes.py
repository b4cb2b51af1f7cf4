"""Test data by name: the recipe, the shape and the seed fix every bit, on every machine.

Built from Philox integers and exact operations only; knows no operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from samebits.numerics.bits import from_bfloat16, round_to
from samebits.numerics.elementary.philox import philox_uint32_native

# Stored fraction bits, exponent bits, how far `wide` spreads exponents without leaving the format, and the exponents of
# the largest and of the small values of `cancelling`: so far apart that a float32 sum of the two must round.
_FORMATS: Final = {"float32": (23, 8, 20, 24, 0), "bfloat16": (7, 8, 20, 24, 0), "float16": (10, 5, 12, 13, -8)}
FORMATS: Final = tuple(_FORMATS)


class _Source:
    """Words of one seed. Each ingredient of a recipe draws from a stream of its own, so that none shifts another."""

    def __init__(self, seed: int, shape: Sequence[int], format: str) -> None:
        self.seed, self.shape, self.format = seed, tuple(shape), format
        self.size = math.prod(self.shape)
        self.fraction_bits, self.exponent_bits, self.spread, self.large, self.small = _FORMATS[format]
        self._stream = 0

    def words(self, each: int = 1) -> np.ndarray:
        """int64 words in 0..2^32-1, shape [*shape] or [*shape, each]."""
        # By the library, whose words are those of the definition: a drawn case is small and there are thousands.
        drawn: np.ndarray = philox_uint32_native(self.seed, self._stream, self.size * each, threads=1).astype(np.int64)
        self._stream += 1
        return drawn.reshape(self.shape if each == 1 else (*self.shape, each))

    def below(self, bound: int) -> np.ndarray:
        """Integers in 0..bound-1."""
        scaled: np.ndarray = self.words() * bound >> 32
        return scaled

    def signs(self) -> np.ndarray:
        """+1 or -1."""
        drawn: np.ndarray = 1 - 2 * self.below(2)
        return drawn

    def patterns(self, exponent_field: np.ndarray) -> np.ndarray:
        """Values of the format with random sign and fraction under the given exponent fields."""
        fraction, sign = self.below(1 << self.fraction_bits), self.below(2)
        stored = self.fraction_bits + self.exponent_bits
        pattern: np.ndarray = (sign << stored) | (exponent_field << self.fraction_bits) | fraction
        if self.format == "bfloat16":
            return from_bfloat16(pattern.astype(np.uint16))
        if self.format == "float16":
            return pattern.astype(np.uint16).view(np.float16).astype(np.float32)
        values: np.ndarray = pattern.astype(np.uint32).view(np.float32)
        return values


def _normal(source: _Source) -> np.ndarray:
    """Bell-shaped, standard deviation 1.15: the sum of four uniform integers (Irwin-Hall), centred."""
    centred: np.ndarray = source.words(4).sum(axis=-1) * 2 - 4 * (2**32 - 1)
    # int64 to float32 rounds once, to nearest even, wherever IEEE arithmetic is kept; the power of two is exact.
    return centred.astype(np.float32) * np.float32(2.0**-32)


def _with_exponents(source: _Source, exponent: np.ndarray) -> np.ndarray:
    """Random sign, full-length significand in [1, 2), the given exponent."""
    significand = source.below(1 << 23) + (1 << 23)
    values: np.ndarray = np.ldexp((source.signs() * significand).astype(np.float32), (exponent - 23).astype(np.int32))
    return values


def _wide(source: _Source) -> np.ndarray:
    return _with_exponents(source, source.below(2 * source.spread + 1) - source.spread)


def _cancelling(source: _Source) -> np.ndarray:
    """Large, small and -large, scattered along the last axis: the large cancel and the order decides what is left."""
    if not source.shape:
        return _normal(source)
    length = source.shape[-1]
    small = _normal(source) * np.float32(2.0**source.small)
    large = _with_exponents(source, source.large - source.below(8))
    position = np.argsort(source.words(), axis=-1, kind="stable")
    third = length // 3
    kept = np.take_along_axis(large, position[..., :third], -1)
    np.put_along_axis(small, position[..., :third], kept, -1)
    np.put_along_axis(small, position[..., third : 2 * third], -kept, -1)
    return small


def _subnormal(source: _Source) -> np.ndarray:
    """Half subnormals, a quarter the smallest normals, a quarter large enough to lift a product with them back."""
    choice = source.below(4)
    largest_field = (1 << source.exponent_bits) - 2
    large = largest_field - source.below(largest_field // 4)
    return source.patterns(np.where(choice < 2, 0, np.where(choice == 2, 1 + source.below(4), large)))


def _infinite(source: _Source) -> np.ndarray:
    """Normal data with +inf, -inf or NaN in about every 512th place, and one of each at least."""
    values = np.array(_normal(source))
    choice = source.below(5 * 512)
    for first, last, special in ((0, 2, np.inf), (2, 4, -np.inf), (4, 5, np.nan)):
        values[(choice >= first) & (choice < last)] = special
    flat = values.reshape(-1)
    for place, special in zip(source.words().reshape(-1)[:3], (np.nan, -np.inf, np.inf), strict=False):
        flat[place % flat.size] = special
    return values


def _random_bits(source: _Source) -> np.ndarray:
    """Every pattern equally likely: infinities and NaNs among them."""
    return source.patterns(source.below(1 << source.exponent_bits))


def _zeros_signed(source: _Source) -> np.ndarray:
    """Three quarters +0 and -0, the rest normal."""
    zeros = source.signs().astype(np.float32) * np.float32(0)
    return np.where(source.below(4) < 3, zeros, _normal(source))


def _wide_gap(source: _Source) -> np.ndarray:
    """Normal data whose last element of a row is larger by more than 90: exp of the difference overflows float32."""
    values = np.array(_normal(source))
    if source.size and values.ndim:
        values[..., -1] = 128
    return values


def _near_tie(source: _Source) -> np.ndarray:
    """Rows of one number and its next larger neighbours in the format: an order of magnitudes hangs on the last bit."""
    step = np.float32(2.0**-source.fraction_bits)
    return np.float32(1) + source.below(3).astype(np.float32) * step


def _constant(source: _Source) -> np.ndarray:
    """One number in every place of a row, another in the next row."""
    values = _normal(source)
    return np.array(np.broadcast_to(values[..., :1], values.shape)) if source.size and values.ndim else values


def _one_hot(source: _Source) -> np.ndarray:
    """One element of a row is not zero."""
    if not source.shape or not source.size:
        return _normal(source)
    place = source.words()[..., :1] % source.shape[-1]
    values: np.ndarray = np.where(np.arange(source.shape[-1]) == place, _normal(source), np.float32(0))
    return values


def _extremes(source: _Source) -> np.ndarray:
    """The largest finite and the smallest normal numbers of the format, both signs, fractions at random."""
    field = np.where(source.below(2) == 1, (1 << source.exponent_bits) - 2, 1)
    return source.patterns(field)


_RECIPES: Final[dict[str, Callable[[_Source], np.ndarray]]] = {
    "normal": _normal,
    "wide": _wide,
    "cancelling": _cancelling,
    "subnormal": _subnormal,
    "infinite": _infinite,
    "random_bits": _random_bits,
    "zeros_signed": _zeros_signed,
    "wide_gap": _wide_gap,
    "near_tie": _near_tie,
    "constant": _constant,
    "one_hot": _one_hot,
    "extremes": _extremes,
}
RECIPES: Final = tuple(_RECIPES)


def make(recipe: str, shape: Sequence[int], seed: int, format: str = "float32") -> np.ndarray:
    """A float32 array of values that the format can hold."""
    if recipe not in _RECIPES:
        raise ValueError(f"recipe={recipe!r} is unknown; allowed: {', '.join(RECIPES)}")
    if format not in _FORMATS:
        raise ValueError(f"format={format!r} is unknown; allowed: {', '.join(FORMATS)}")
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed must be in 0..2^64-1, got seed={seed}")
    return round_to(_RECIPES[recipe](_Source(seed, shape, format)), format)
