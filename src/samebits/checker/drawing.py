"""Level 3: cases drawn by Hypothesis from a contract's domain, and a failure made small.

Hypothesis draws the structure, that is shape, recipe, format and seed; the recipe makes the numbers. So a case is one
line of text, and the same seed draws the same cases everywhere. Drawing a structure takes longer than judging most
cases, so each is tried on several seeds, and obligations that share a domain share what was drawn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from samebits.checker.cases import Case
from samebits.contracts.language import Domain
from samebits.records.packages import needed

SEEDS_EACH = 16
# Far from 1, so that no two structures meet at their seeds; seeds lie below 2^31.
SEED_STEP, SEEDS = 1_640_531_527, 2**31 - 1
MOST_STRUCTURES = 60_000
Sizes = tuple[Sequence[int], ...]


class _EnoughError(BaseException):
    """Ends drawing; no Exception, for those Hypothesis would take for a failure."""


def drawn(domain: Domain, formats: Sequence[str], calls: int, seed: int) -> list[Case]:
    """So many different cases, every recipe and format among them; the same for the same seed."""
    axes = tuple(tuple(sizes) for sizes in domain.draw.axes())
    return list(_drawn(axes, tuple(domain.draw.recipes), tuple(formats), calls, seed))


@lru_cache(maxsize=8)
def _drawn(axes: Sizes, recipes: tuple[str, ...], formats: tuple[str, ...], calls: int, seed: int) -> tuple[Case, ...]:
    # Loaded here: what is only checked or read draws nothing.
    with needed("level 3"):
        import hypothesis
        from hypothesis import strategies

    cases = dict.fromkeys(_corners(axes, recipes, formats, seed))

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=MOST_STRUCTURES,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(
        strategies.tuples(*map(strategies.sampled_from, axes)),
        strategies.sampled_from(recipes),
        strategies.sampled_from(formats),
        strategies.integers(0, SEEDS - 1),
    )
    def draw(shape: tuple[int, ...], recipe: str, format: str, number: int) -> None:
        if len(cases) >= calls:
            raise _EnoughError
        for place in range(SEEDS_EACH):
            cases[Case(shape, recipe, format, (number + place * SEED_STEP) % SEEDS)] = None

    with contextlib.suppress(_EnoughError):
        draw()
    return tuple(cases)[: max(calls, 1)]


def _corners(axes: Sizes, recipes: Sequence[str], formats: Sequence[str], seed: int) -> Iterator[Case]:
    """Each recipe in each format at the largest shape, and with as many rows at the smallest: what is promised to be
    tried is tried, and a row of zeros alone is among it."""
    largest = tuple(map(max, axes))
    narrowest = (largest[0], *map(min, axes[1:]))
    for number, recipe in enumerate(recipes):
        for place, format in enumerate(formats):
            for shape in dict.fromkeys((largest, narrowest)):
                yield Case(shape, recipe, format, seed + number * len(formats) + place)


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
