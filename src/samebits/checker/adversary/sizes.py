"""Which sizes a function is tried on: every small one, primes and odd factors, a few large ones, one axis at a time.

Knows axes by the letters of a spec, and no operator. Sizes that would take too long are left out."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

MOST_ROWS = 4200
LONG_ROWS = (
    255,
    256,
    257,
    300,
    384,
    500,
    511,
    513,
    640,
    777,
    1000,
    1023,
    1024,
    1025,
    1500,
    2047,
    2048,
    2049,
    3001,
    4097,
)
# Of few numbers each: what runs through a batch in pieces, or takes another way for a long one.
# A grid's second axis has 65,535 blocks at most.
MANY_ROWS = (6000, 8191, 8192, 8193, 10007, 16384, 16385, 20000, 32768, 32769, 65536, 100003)
# What a weight's gradient is summed over: one more than a tile, and others.
SUM_ROWS = (65, 3, 129, 17, 257, 2, 33, 100, 300, 513)
# One more than a tile first, for a slow function is tried on a few of them only.
# fmt: off
EDGES = (
    17, 33, 65, 129, 1, 16, 48, 64, 100, 31, 2, 32, 63, 7, 127,
    3, 128, 49, 97, 5, 9, 4, 8, 12, 15, 24, 47, 96, 192, 200,
)
# fmt: on

# Sizes of one axis beside short ones. With the second, tried early, they have every remainder by 16.
# fmt: off
LARGE = (
    192, 255, 256, 257, 300, 384, 511, 512, 513, 576, 640, 777, 1000, 1023, 1024, 1025,
    1536, 2047, 2048, 2049, 2500, 3000, 3001, 3072, 4095, 4096, 4097, 5000, 6144, 7000, 8192, 8199,
)
# fmt: on
REMAINDERS = (663, 909, 405, 470, 539, 339, 274, 730, 846)


@dataclass(frozen=True, kw_only=True, slots=True)
class Axes:
    """The axes behind the rows: a base size, the largest, and what sizes must be multiples of."""

    base: tuple[int, ...]
    most: tuple[int, ...]
    power: tuple[int, ...] = ()
    """How the work grows with each axis; 1 where nothing is said."""


_KNOWN = {
    "MKN": Axes(base=(67, 12), most=(8200, 8200)),
    "MH": Axes(base=(67,), most=(20000,)),
    "MV": Axes(base=(67,), most=(20000,)),
    "MKV": Axes(base=(35, 29), most=(4100, 20000)),
    "MVH": Axes(base=(29, 35), most=(4100, 4100)),
    # Three query heads to each of two key heads; a head whose root is no power of two, so that it matters where scores
    # are scaled.
    "BSHKD": Axes(base=(5, 6, 2, 24), most=(300, 16, 4, 256), power=(2, 1, 0, 1)),
    "THD": Axes(base=(3, 16), most=(16, 512)),
}


def axes_of(letters: str) -> Axes:
    count = len(letters) - 1
    return _KNOWN.get(letters) or Axes(base=(24,) * count, most=(512,) * count)


def has_weight(letters: str) -> bool:
    """Whether the axes behind the rows are those of a matrix that all rows share."""
    return letters in ("MKN", "MKV", "MVH")


def legal(letters: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The nearest sizes that make sense: query heads are a multiple of key heads, a rotated head is even."""
    if letters == "BSHKD":
        rows, tokens, heads, key_heads, head = sizes
        return (rows, tokens, key_heads * max(1, heads // key_heads), key_heads, head)
    if letters == "THD":
        return (*sizes[:2], sizes[2] + sizes[2] % 2)
    return sizes


@dataclass(slots=True)
class Cost:
    """Seconds that a call of given sizes takes, learnt from those made: so much for any call, so much for its work."""

    letters: str
    seen: dict[int, list[float]] = field(default_factory=dict)
    """By the size of the work, in powers of two: the quickest call and the second quickest."""

    def work(self, sizes: tuple[int, ...]) -> int:
        power = axes_of(self.letters).power or (1,) * (len(sizes) - 1)
        return math.prod([sizes[0], *(size**exponent for size, exponent in zip(sizes[1:], power, strict=True))])

    def learn(self, sizes: tuple[int, ...], seconds: float) -> None:
        bucket = self.seen.setdefault(self.work(sizes).bit_length(), [])
        bucket.append(seconds)
        bucket.sort()
        del bucket[2:]

    def expected(self, sizes: tuple[int, ...]) -> float:
        """What such a call should take. One slow call says nothing: it may have loaded, compiled or waited."""
        known = {bits: took[-1] for bits, took in self.seen.items() if len(took) > 1}
        if not known:
            return 0.0
        bits = self.work(sizes).bit_length()
        if bits in known:
            return known[bits]
        below = [each for each in known if each < bits]
        nearest = max(below) if below else min(known)
        return known[nearest] * (2.0 ** (bits - nearest) if below and bits > 12 else 1.0)


def near(numbers: Sequence[int], most: int) -> list[int]:
    """Numbers found in a function's code and their neighbours; then sums, doubles and multiples, and theirs."""
    found: dict[int, None] = {}
    for shift in (0, 1, -1):
        found |= {number + shift: None for number in numbers}
    for number in numbers:
        found |= {factor * number + rest: None for rest in numbers if rest < number for factor in (1, 2, 5)}
    for factor in (2, 3):
        found |= {factor * number + shift: None for number in numbers for shift in (0, 1, -1)}
    return [size for size in found if 1 <= size <= most]


def named_sizes(numbers: Sequence[int]) -> list[int]:
    """Sizes worth trying because a function's code names these numbers."""
    return near(numbers, 1 << 16)


def drawn_rows(source: random.Random, named: Sequence[int], most: int) -> int:
    """A number of rows: often small, any residue, sometimes thousands, sometimes one that the code names."""
    choice = source.random()
    if choice < 0.12:
        return min(source.choice((1, 1, 2, 3)), most)
    if choice < 0.42:
        return source.randint(1, min(64, most))
    if choice < 0.65:
        return source.randint(1, min(520, most))
    if choice < 0.75:
        return min(source.choice(LONG_ROWS), most)
    if choice < 0.88 and named:
        return min(source.choice(named), most)
    return max(1, min(int(math.exp(source.uniform(0, math.log(most)))), most))


def drawn_tail(source: random.Random, letters: str, named: Sequence[int]) -> tuple[int, ...]:
    """Sizes of the other axes: all small, or one of them large."""
    axes = axes_of(letters)
    tail = [source.randint(1, min(source.choice((9, 40, 130)), most)) for most in axes.most]
    place = source.randrange(len(tail))
    most, choice = axes.most[place], source.random()
    allowed = [size for size in named if size <= most]
    if choice < 0.2:
        tail[place] = min(source.choice(EDGES), most)
    elif choice < 0.45:
        tail[place] = max(1, int(math.exp(source.uniform(0, math.log(most)))))
    elif choice < 0.6 and allowed:
        tail[place] = source.choice(allowed)
    elif choice < 0.7:
        tail = [
            min(16 * source.randint(1, 9), most) if most > 16 else size
            for size, most in zip(tail, axes.most, strict=True)
        ]
    if choice > 0.9 and allowed and len(tail) > 1:
        other = (place + 1) % len(tail)
        tail[other] = min(source.choice(allowed), axes.most[other])
    return tuple(tail)


def swept(most: int) -> Iterator[int]:
    """Every size up to a bound, small ones first."""
    yield from range(1, most + 1)
