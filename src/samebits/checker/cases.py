"""What a promise is tried on: one case is a shape, a recipe, a format and a seed, and fixes every input bit.

Knows no promise. Rows are taken, padded and cut here, the same way for every row argument of a spec."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from samebits.contracts.language import FORMATS, Domain
from samebits.contracts.spec import Arguments, OperatorSpec
from samebits.numerics.recipes import RECIPES, make

# Gradients are judged under numbers of the case's own recipe; where that is not finite, under normal ones.
FINITE_RECIPES = ("normal", "wide", "cancelling")
# The arguments of a case draw from small multiples of its seed, the cotangent from far away.
COTANGENT_SEED = 2**32


@dataclass(frozen=True, slots=True)
class Case:
    """One input, by name."""

    shape: tuple[int, ...]
    recipe: str
    format: str
    seed: int

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape))} {self.recipe} {self.format} seed {self.seed}"

    @property
    def options(self) -> str:
        """The command-line options that ask for this case alone."""
        shape = "x".join(map(str, self.shape))
        return f"--shape {shape} --recipe {self.recipe} --format {self.format} --seed {self.seed}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """What a caller narrows a domain to; None leaves the domain's own."""

    shape: tuple[int, ...] | None = None
    recipe: str | None = None
    formats: tuple[str, ...] | None = None
    seed: int | None = None

    @property
    def narrows(self) -> bool:
        return any(each is not None for each in (self.shape, self.recipe, self.formats, self.seed))

    def __post_init__(self) -> None:
        if self.recipe is not None and self.recipe not in RECIPES:
            raise ValueError(f"recipe={self.recipe!r} is unknown; allowed: {', '.join(RECIPES)}")
        for format in self.formats or ():
            if format not in FORMATS:
                raise ValueError(f"format={format!r} is unknown; allowed: {', '.join(FORMATS)}")
        if self.seed is not None and not 0 <= self.seed < 2**31:
            raise ValueError(f"seed must be in 0..2^31-1, got seed={self.seed}")
        if self.shape is not None and (not self.shape or min(self.shape) < 1):
            raise ValueError(f"shape must be sizes of at least 1, got shape={'x'.join(map(str, self.shape))}")


def cases(spec: OperatorSpec, domain: Domain, selection: Selection) -> list[Case]:
    """Every case of the domain, narrowed; a shape that the spec cannot take is a ValueError."""
    shapes = [selection.shape] if selection.shape else [tuple(shape) for shape in domain.shapes]
    for shape in shapes:
        if len(shape) != len(spec.shape_axes):
            text = "x".join(map(str, shape))
            raise ValueError(f"{spec.name}: shape={text} has {len(shape)} sizes; allowed: {'x'.join(spec.shape_axes)}")
    return [
        Case(shape, recipe, format, seed)
        for shape in shapes
        for recipe in ([selection.recipe] if selection.recipe else domain.recipes)
        for format in (selection.formats or domain.formats)
        for seed in ([selection.seed] if selection.seed is not None else domain.seeds)
    ]


def cotangent(case: Case, output: Tensor) -> Tensor:
    """The gradient that flows into the output: as random as the inputs, the same on every machine."""
    recipe = case.recipe if case.recipe in FINITE_RECIPES else "normal"
    values = make(recipe, tuple(output.shape), COTANGENT_SEED + case.seed, case.format)
    return torch.from_numpy(values).to(output.dtype)


def take(spec: OperatorSpec, arguments: Arguments, rows: slice | Tensor) -> Arguments:
    """The same call for some rows. A slice is a view into the batch, at whatever address; an index makes a copy."""
    return {name: value[rows] if name in spec.row_arguments else value for name, value in arguments.items()}


def pad(spec: OperatorSpec, arguments: Arguments, before: int, after: int, fill: float) -> Arguments:
    """The same call with rows of `fill` around it."""
    return {
        name: pad_rows(value, before, after, fill) if name in spec.row_arguments else value
        for name, value in arguments.items()
    }


def pad_rows(tensor: Tensor, before: int, after: int, fill: float) -> Tensor:
    """Rows of `fill` around a tensor; of token 0, position 0 and the like around whole numbers."""
    fill = fill if tensor.is_floating_point() else 0
    padded = tensor.new_full((before + tensor.shape[0] + after, *tensor.shape[1:]), fill)
    padded[before : before + tensor.shape[0]] = tensor
    return padded


def batch_sizes(most: int) -> list[int]:
    """1, 2, 3 and every power of two with its neighbours, up to `most`: where libraries change their minds."""
    powers = [2**i for i in range(most.bit_length() + 1)]
    return sorted({size + step for size in powers for step in (-1, 0, 1) if 1 <= size + step <= most} | {most})


def chunk_cuts(rows: int) -> Iterator[list[slice]]:
    """Several ways to cut rows into chunks: by equal lengths, and unevenly."""
    lengths = sorted({1, 2, 3, 7, 16, 64, (rows + 1) // 2} & set(range(1, rows)))
    for length in lengths:
        yield [slice(start, min(start + length, rows)) for start in range(0, rows, length)]
    if rows > 3:
        yield as_slices([1, rows // 3, rows - 1], rows)


def micro_cuts(rows: int, multiple: int) -> Iterator[list[slice]]:
    """Several ways to cut rows at multiples of the chain's width: everywhere, early, late, unevenly."""
    places = list(range(multiple, rows, multiple))
    ways = [places, places[:1], places[-1:], places[::3], places[1::2]]
    seen: list[list[int]] = [[]]
    for way in ways:
        if way not in seen:
            seen.append(way)
            yield as_slices(way, rows)


def as_slices(places: Sequence[int], rows: int) -> list[slice]:
    """The pieces between sorted places."""
    edges = sorted({0, *places, rows})
    return [slice(start, stop) for start, stop in pairwise(edges)]
