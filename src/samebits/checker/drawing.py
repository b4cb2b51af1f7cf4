"""Level 3: cases drawn from a contract's domain by the counter-based generator, and a failure made small.

Case `index` of a stream follows from the domain's `draw`, the formats, the seed and the index alone: by Philox words
and whole numbers, so every machine draws the same cases, and so does whoever draws only one of them. The recipe makes
the numbers; a case is one line of text. Each call has a structure and a seed of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import product

import numpy as np

from samebits.checker.cases import Case
from samebits.contracts.language import Domain
from samebits.numerics.elementary.philox import philox_uint32_native

# Odd, so that no two of 2^31 indices have one seed; large, so that neighbours' seeds are far apart.
SEED_STEP, SEEDS = 1_640_531_527, 2**31
# Words of one case: two a size, of eight sizes at most, then the recipe and the format.
WORDS, RECIPE_WORD, FORMAT_WORD = 20, 16, 17
# Cases whose words are drawn at once.
BLOCK = 512
# Keys with this bit are those of drawing; inputs are made under keys without it.
KEY = 2**63
WORD = 2**32
# Of a range's sizes a quarter is drawn evenly, the rest evenly by octave: most are small, and none is rare.
EVENLY = WORD // 4


class Stream:
    """Drawn cases by index, all different; first the corners, so that what is promised to be tried is tried."""

    def __init__(self, domain: Domain, formats: Sequence[str], seed: int) -> None:
        if not 0 <= seed < SEEDS:
            raise ValueError(f"level 3: seed must be in 0..{SEEDS - 1}, got seed={seed}")
        self.axes, self.recipes, self.formats = domain.draw.axes(), tuple(domain.draw.recipes), tuple(formats)
        self.seed = seed
        self._corners = list(self._corner_structures())

    def __getitem__(self, index: int) -> Case:
        seed = (self.seed + (index + 1) * SEED_STEP) % SEEDS
        if index < len(self._corners):
            return Case(*self._corners[index], seed)
        words = _words(self.seed, index // BLOCK)[index % BLOCK].tolist()
        shape = tuple(_size(sizes, words[2 * axis], words[2 * axis + 1]) for axis, sizes in enumerate(self.axes))
        recipe = self.recipes[words[RECIPE_WORD] * len(self.recipes) // WORD]
        return Case(shape, recipe, self.formats[words[FORMAT_WORD] * len(self.formats) // WORD], seed)

    def _corner_structures(self) -> Iterator[tuple[tuple[int, ...], str, str]]:
        """Each recipe in each format at the largest shape, and with as many rows at the smallest: a row of zeros
        alone is among it."""
        largest = tuple(map(max, self.axes))
        narrowest = (largest[0], *map(min, self.axes[1:]))
        for recipe, format in product(self.recipes, self.formats):
            for shape in dict.fromkeys((largest, narrowest)):
                yield shape, recipe, format


@lru_cache(maxsize=64)
def _words(seed: int, block: int) -> np.ndarray:
    """The words of a block of cases, one row each."""
    return philox_uint32_native(KEY + seed, block, BLOCK * WORDS, threads=1).reshape(BLOCK, WORDS)


def _size(sizes: Sequence[int], which: int, place: int) -> int:
    """One of listed sizes, each as likely as it is often listed; of a range see EVENLY."""
    if isinstance(sizes, range) and which >= EVENLY:
        octaves = _octaves(sizes)
        sizes = octaves[(which - EVENLY) * len(octaves) // (WORD - EVENLY)]
    return sizes[place * len(sizes) // WORD]


@lru_cache(maxsize=64)
def _octaves(sizes: range) -> list[range]:
    """A range cut at the powers of two."""
    edges = [2**power for power in range(sizes[0].bit_length(), sizes[-1].bit_length())]
    return [range(low, high) for low, high in zip((sizes[0], *edges), (*edges, sizes[-1] + 1), strict=True)]


def drawn(domain: Domain, formats: Sequence[str], calls: int, seed: int) -> list[Case]:
    """The first cases of a stream."""
    stream = Stream(domain, formats, seed)
    return [stream[index] for index in range(calls)]


def minimised(case: Case, domain: Domain, fails: Callable[[Case], bool]) -> Case:
    """A case that still fails and is small: sizes down by halves and steps, then a plainer recipe, format and seed."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in _simpler(case, domain):
            if fails(candidate):
                case, smaller = candidate, True
                break
    return case


def _simpler(case: Case, domain: Domain) -> Iterator[Case]:
    """Candidates, the boldest first."""
    for axis, sizes in enumerate(domain.draw.axes()):
        below = sorted(size for size in sizes if size < case.shape[axis])
        for size in dict.fromkeys([*below[:1], *below[len(below) // 2 : len(below) // 2 + 1], *below[-1:]]):
            yield Case((*case.shape[:axis], size, *case.shape[axis + 1 :]), case.recipe, case.format, case.seed)
    for recipe in domain.draw.recipes[: domain.draw.recipes.index(case.recipe)]:
        yield Case(case.shape, recipe, case.format, case.seed)
    if case.seed > 9:
        yield from (Case(case.shape, case.recipe, case.format, seed) for seed in (0, 1, 2))
