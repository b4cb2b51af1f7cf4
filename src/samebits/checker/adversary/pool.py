"""The rows a function is tried on: ordinary ones, and one of each kind that kernels trip over, the same everywhere.

A call picks rows from the pool, again and again if it is large: every output row then has a known answer. The numbers
are chosen so that a float64 accumulator adds them without loss: another order or a wider sum is no fault."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from samebits.checker.adversary.trial import Trial
from samebits.contracts.spec import Arguments, OperatorSpec
from samebits.numerics.recipes import RECIPES, make

MIXED = (
    "normal",
    "normal",
    "zero",
    "nan",
    "normal",
    "integers",
    "subnormal",
    "huge",
    "cancelling",
    "probe",
    "normal",
    "minus_zero",
    "one_nan",
    "wide",
    "constant",
    "one_hot",
    "infinite",
    "normal",
    "copy",
    "almost_copy",
    "probe",
    "cancelling",
    "integers",
    "signed_zeros",
    "normal",
    "normal",
    "low",
    "very_low",
)
# What an exact value can be compared with: nothing overflows or underflows on the way.
FINITE_KINDS = (
    "normal",
    "zero",
    "minus_zero",
    "integers",
    "constant",
    "one_hot",
    "copy",
    "almost_copy",
    "signed_zeros",
)
# Sums of products stay finite and exact enough on these too.
FINITE_SUM_KINDS = (*FINITE_KINDS, "wide", "cancelling", "probe")
SHARED = ("normal", "ones", "integers", "wide", "signed_zeros", "subnormal", "infinite")
COTANGENT_SEED = 2**32
MOST_ELEMENTS = 40_000
FEWEST_ROWS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """Rows by number, with the kind of each; shared arguments among them."""

    arguments: Arguments
    kinds: tuple[str, ...]

    def finite(self, allowed: tuple[str, ...]) -> list[int]:
        return [place for place, kind in enumerate(self.kinds) if kind in allowed]


def kinds_of(rows: str, elements: int) -> tuple[str, ...]:
    """The kind of each row of a pool; fewer rows where a row is long."""
    if rows != "mixed":
        named = tuple(rows.split(","))
        for each in named:
            if each not in KINDS and each not in RECIPES:
                raise ValueError(f"case: rows={each!r} is unknown; allowed: mixed, {', '.join(KINDS)}")
        return named * max(1, math.ceil(FEWEST_ROWS / len(named)))
    return MIXED[: max(FEWEST_ROWS, min(len(MIXED), MOST_ELEMENTS // max(elements, 1)))]


def make_pool(spec: OperatorSpec, trial: Trial) -> Pool:
    """All rows and shared arguments of a trial's problem, from its text alone."""
    tail, format, seed = trial.sizes[1:], trial.format, trial.seed
    kinds = kinds_of(trial.rows, math.prod(tail[:1] if len(tail) < 3 else tail))
    # Positions are multiples of the seed: not 0, for then all of them would be.
    made = spec.make((len(kinds), *tail), "normal", format, seed + 1)
    if trial.shared not in SHARED:
        raise ValueError(f"case: shared={trial.shared!r} is unknown; allowed: {', '.join(SHARED)}")
    arguments = {}
    for number, (name, value) in enumerate(made.items()):
        if not value.is_floating_point():
            arguments[name] = value
        elif name in spec.row_arguments:
            arguments[name] = _rows(value, kinds, seed * 31 + number, format, down=number % 2 == 0)
        else:
            arguments[name] = _shared(value, trial.shared, seed * 37 + number, format)
    return Pool(arguments=arguments, kinds=kinds)


def cotangents(trial: Trial, pool: Pool, row_shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The gradient that flows into the output of each row of the pool."""
    values = make("normal", (len(pool.kinds), *row_shape), COTANGENT_SEED + trial.seed, trial.format)
    return torch.from_numpy(values).to(dtype)


def _rows(values: Tensor, kinds: tuple[str, ...], seed: int, format: str, *, down: bool) -> Tensor:
    """`down`: an argument that low rows carry down; the next is carried up, so that products of both are low."""
    wide = values.float().clone()
    for place, kind in enumerate(kinds):
        row = wide[place].reshape(-1)
        changed = KINDS[kind](row, format) if kind in KINDS else _recipe(row, kind, seed + place, format)
        if kind in ("low", "very_low") and not down:
            changed = -changed
        wide[place] = changed.reshape(wide[place].shape)
    for place, kind in enumerate(kinds):
        if kind in ("copy", "almost_copy"):
            wide[place] = wide[0]
            if kind == "almost_copy":
                last = wide[place].reshape(-1)
                last[-1] = last[-1] * 1.25
    rows = wide.to(values.dtype)
    for place, kind in enumerate(kinds):
        if kind == "nan":
            _every_nan(rows[place])
    return rows


def _every_nan(row: Tensor) -> None:
    """NaN of both signs, quiet and signalling, with the least and the greatest payload: a cast may know one alone."""
    info = torch.finfo(row.dtype)
    whole = torch.int32 if info.bits == 32 else torch.int16
    infinite = int(torch.tensor(torch.inf, dtype=row.dtype).view(whole))
    largest, quiet = (1 << (info.bits - 1)) - 1, int(torch.tensor(torch.nan, dtype=row.dtype).view(whole))
    patterns = [quiet, -1, largest, infinite + 1, quiet - (1 << (info.bits - 1))]
    bits = torch.tensor(patterns, dtype=torch.int64).to(whole)
    row.view(whole).copy_(bits.repeat(-(-row.numel() // len(patterns)))[: row.numel()].view(row.shape))


def _recipe(row: Tensor, recipe: str, seed: int, format: str) -> Tensor:
    return torch.from_numpy(make(recipe, tuple(row.shape), seed, format))


def _shared(values: Tensor, kind: str, seed: int, format: str) -> Tensor:
    wide = values.float().clone()
    flat = wide.reshape(-1)
    if kind == "signed_zeros":
        flat = _recipe(flat, "zeros_signed", seed, format)
    elif kind == "wide":
        flat = _recipe(flat, "wide", seed, format)
    elif kind != "normal":
        flat = KINDS[kind](flat, format)
    return flat.reshape(wide.shape).to(values.dtype)


def _filled(value: float) -> Callable[[Tensor, str], Tensor]:
    return lambda row, _: torch.full_like(row, value)


def _one(value: float) -> Callable[[Tensor, str], Tensor]:
    def changed(row: Tensor, _: str) -> Tensor:
        row = row.clone()
        row[row.numel() // 3] = value
        return row

    return changed


def _lowered(distance: float) -> Callable[[Tensor, str], Tensor]:
    return lambda row, _: row - distance


def _integers(row: Tensor, _: str) -> Tensor:
    """Small whole numbers: every sum is exact in every order, and many are zero."""
    return (row * 2).round()


def _scaled(exponents: dict[str, int]) -> Callable[[Tensor, str], Tensor]:
    return lambda row, format: row * 2.0 ** exponents[format]


def _probe(row: Tensor, format: str) -> Tensor:
    """A large number, its opposite, and small ones that are lost between the two: the order decides which."""
    large, small = (2.0**14, 2.0**-11) if format == "float16" else (2.0**30, 1.0)
    changed = torch.full_like(row, small)
    first = int(row[0].abs() * 1e6) % row.numel()
    second = int(row[-1].abs() * 1e6) % row.numel()
    changed[first] = large
    changed[second if second != first else (first + 1) % row.numel()] = -large
    return changed


def _far_apart(row: Tensor, format: str) -> Tensor:
    """An ordinary row with a number and its opposite so large that what meets one of them is lost to float64 too."""
    probed = _probe(row, format)
    large = probed.abs() == probed.abs().max()
    return torch.where(large, probed if format == "float16" else probed * 2.0**30, row)


def _cancelling(row: Tensor, format: str) -> Tensor:
    """Quarters of whole numbers among large ones of both signs."""
    quarters = (row * 4).round() / 4
    large = 2.0**11 if format == "float16" else 2.0**24
    changed = quarters.clone()
    changed[0::3] = large * (1 + quarters[0::3].abs().floor())
    changed[1::3] = -large * (1 + quarters[1::3].abs().floor())
    return changed


def _constant(row: Tensor, _: str) -> Tensor:
    return row[:1].expand_as(row).clone()


def _one_hot(row: Tensor, _: str) -> Tensor:
    changed = torch.zeros_like(row)
    changed[row.numel() // 2] = row[0]
    return changed


def _signed_zeros(row: Tensor, _: str) -> Tensor:
    """Zeros of the sign of an ordinary row."""
    return row * 0.0


def _unchanged(row: Tensor, _: str) -> Tensor:
    return row


KINDS: dict[str, Callable[[Tensor, str], Tensor]] = {
    "normal": _unchanged,
    "zero": _filled(0.0),
    "minus_zero": _filled(-0.0),
    "nan": _filled(float("nan")),
    "one_nan": _one(float("nan")),
    "infinite": _one(float("inf")),
    "integers": _integers,
    "ones": _filled(1.0),
    "subnormal": _scaled({"float32": -140, "bfloat16": -128, "float16": -17}),
    "huge": _scaled({"float32": 120, "bfloat16": 120, "float16": 13}),
    "cancelling": _cancelling,
    "probe": _probe,
    "far_apart": _far_apart,
    "constant": _constant,
    "one_hot": _one_hot,
    "signed_zeros": _signed_zeros,
    "copy": _unchanged,
    "almost_copy": _unchanged,
    "low": _lowered(8.0),
    "very_low": _lowered(20_000.0),
}
