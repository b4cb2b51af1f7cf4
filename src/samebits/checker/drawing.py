"""Level 3: cases drawn by Hypothesis from a contract's domain, each for one call, and a failure made small.

Hypothesis draws the structure, that is shape, recipe, format and seed; the recipe makes the numbers. So a case is one
line of text, and the same seed draws the same cases everywhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from samebits.checker.cases import Case
from samebits.contracts.language import Domain
from samebits.records.packages import needed

MOST_CASES = 60_000


class _EnoughError(BaseException):
    """Ends drawing; no Exception, for those Hypothesis would take for a failure."""


def drawn(domain: Domain, formats: Sequence[str], calls: int, seed: int) -> list[Case]:
    """So many distinct cases at least, every recipe and format among them; the same for the same seed."""
    # Loaded here: what is only checked or read draws nothing.
    with needed("level 3"):
        import hypothesis
        from hypothesis import strategies

    axes = [strategies.sampled_from(sizes) for sizes in domain.draw.axes()]
    cases: dict[Case, None] = {}

    # Each recipe in each format at the largest shape, and with as many rows at the smallest: what is promised to be
    # tried is tried, and a row of zeros alone is among it.
    largest = tuple(max(sizes) for sizes in domain.draw.axes())
    narrowest = (largest[0], *(min(sizes) for sizes in domain.draw.axes()[1:]))
    for number, recipe in enumerate(domain.draw.recipes):
        for place, format in enumerate(formats):
            for shape in dict.fromkeys((largest, narrowest)):
                cases[Case(shape, recipe, format, seed + number * len(formats) + place)] = None

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=MOST_CASES, database=None, deadline=None, phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(
        strategies.tuples(*axes), strategies.sampled_from(domain.draw.recipes), strategies.sampled_from(list(formats)),
        strategies.integers(0, 2**31 - 2),
    )  # fmt: skip
    def draw(shape: tuple[int, ...], recipe: str, format: str, number: int) -> None:
        if len(cases) >= calls:
            raise _EnoughError
        cases[Case(shape, recipe, format, number)] = None

    with contextlib.suppress(_EnoughError):
        draw()
    return list(cases)


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
