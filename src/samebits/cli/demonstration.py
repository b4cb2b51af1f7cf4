"""Measures what the demo shows: rows alone against the same rows in a batch, and the orders behind the difference.

Stock torch and samebits get the same inputs. Knows nothing of how the result is shown."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import wraps
from typing import Any, Final

import torch

from samebits import checker
from samebits.checker.cases import Case, take
from samebits.checker.environment import environment
from samebits.checker.targets import OPERATORS, find_spec, import_function, positional
from samebits.contracts.spec import Function
from samebits.numerics.bits import compare, hexadecimal, numpy_bits
from samebits.numerics.order import digest
from samebits.numerics.picture import describe
from samebits.numerics.reveal import OrderGroup, group_orders

STOCK_LINEAR, OUR_LINEAR = "torch.nn.functional.linear", "samebits.ops.linear"
STOCK_NORM, OUR_NORM = "torch.nn.functional.rms_norm", "samebits.ops.rmsnorm"
FORMATS: Final = ("float32", "bfloat16")
BATCHES: Final = (2, 3, 8, 17, 33, 64)
# (K, N): a small square, a small model's projection, and sizes a library tiles differently.
LINEAR_SIZES: Final = ((64, 64), (576, 1536), (1024, 256))
NORM_SIZES: Final = ((64,), (576,), (4096,))
# Rows of each batch that are run again alone.
ROWS_ALONE = 8
TERMS = 64
REVEALED_ROWS: Final = (1, 2, 8, 64)
SEED = 1


@dataclass(frozen=True, slots=True)
class Number:
    """One value, exactly."""

    hexadecimal: str
    pattern: str
    """Bits from sign to last fraction bit, as 0 and 1."""


@dataclass(frozen=True, slots=True)
class Example:
    """The first element that differs."""

    subject: str
    case: Case
    rows: int
    index: tuple[int, ...]
    alone: Number
    batched: Number
    ulps: int | None


@dataclass(frozen=True, slots=True)
class Sweep:
    """One function over all sizes in one format."""

    subject: str
    format: str
    sizes: str
    compared: int
    changed: int
    elements: int
    """Elements that differ, over all changed rows."""


@dataclass(frozen=True, slots=True)
class Orders:
    """The orders one function was seen to use."""

    subject: str
    terms: int
    groups: tuple[OrderGroup, ...]


@dataclass(frozen=True, slots=True)
class Demonstration:
    sweeps: tuple[Sweep, ...]
    example: Example | None
    """Of stock torch; None where it kept every bit here."""
    counterpart: Example | None
    """The very same element computed by samebits."""
    orders: tuple[Orders, ...]
    machine: dict[str, str]

    @property
    def kept(self) -> bool:
        """Whether samebits kept every bit, and by one replayed order."""
        ours = [sweep for sweep in self.sweeps if sweep.subject.startswith("samebits.")]
        orders = [each.groups for each in self.orders if each.subject.startswith("samebits.")]
        one_order = all(len(groups) == 1 and groups[0].verdict == "holds" for groups in orders)
        return bool(ours) and one_order and not any(sweep.changed for sweep in ours)

    def as_dict(self) -> dict[str, Any]:
        def order(group: OrderGroup) -> dict[str, Any]:
            return {
                "rows": [int(label) for label in group.labels],
                "verdict": group.verdict,
                "order": describe(group.order) if group.order else None,
                "digest": digest(group.order) if group.order else None,
            }

        first = self.example
        return {
            "samebits_keeps_its_bits": self.kept,
            "sweeps": [asdict(each) for each in self.sweeps],
            "first_difference": None
            if first is None
            else {
                "subject": first.subject,
                "case": str(first.case),
                "index": list(first.index),
                "alone": first.alone.hexadecimal,
                "batched": first.batched.hexadecimal,
                "ulps": first.ulps,
            },
            "orders": [
                {"subject": each.subject, "terms": each.terms, "orders": [order(group) for group in each.groups]}
                for each in self.orders
            ],
            "machine": self.machine,
        }


def demonstrate(tell: Callable[[str], None] = lambda _: None) -> Demonstration:
    """Everything the page shows."""
    sweeps: list[Sweep] = []
    examples: list[Example] = []
    for subject, spec, sizes in (
        (STOCK_LINEAR, "linear", LINEAR_SIZES),
        (OUR_LINEAR, "linear", LINEAR_SIZES),
        (STOCK_NORM, "rmsnorm", NORM_SIZES),
        (OUR_NORM, "rmsnorm", NORM_SIZES),
    ):
        for format in FORMATS:
            tell(f"{subject}, {format}: rows alone and in batches")
            sweep, example = _sweep(subject, spec, sizes, format)
            sweeps.append(sweep)
            examples.extend([example] if example and subject.startswith("torch.") else [])
    orders = []
    for subject in (STOCK_LINEAR, OUR_LINEAR):
        tell(f"{subject}: revealing its order")
        found = checker.reveal(subject, TERMS, REVEALED_ROWS)
        orders.append(Orders(subject, TERMS, group_orders({str(rows): each for rows, each in found.items()})))
    example = examples[0] if examples else None
    counterpart = _at(OUR_LINEAR, example) if example and example.subject == STOCK_LINEAR else None
    return Demonstration(tuple(sweeps), example, counterpart, tuple(orders), environment())


def _sweep(subject: str, spec: str, sizes: tuple[tuple[int, ...], ...], format: str) -> tuple[Sweep, Example | None]:
    """Counts over all sizes and batches, and the first element that differs."""
    compared = changed = elements = 0
    first: Example | None = None
    for size in sizes:
        for rows in BATCHES:
            case = Case((rows, *size), "normal", format, SEED)
            for row, alone, batched in _pairs(subject, spec, case):
                differs = compare(alone, batched)
                compared += 1
                if differs is not None:
                    changed, elements = changed + 1, elements + differs.count
                    index = (row, *differs.index[1:])
                    first = first or Example(
                        subject,
                        case,
                        rows,
                        index,
                        _number(alone[differs.index]),
                        _number(batched[differs.index]),
                        differs.ulps,
                    )
    names = ", ".join("x".join(map(str, size)) for size in sizes)
    return Sweep(subject, format, names, compared, changed, elements), first


def _pairs(subject: str, spec_name: str, case: Case) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """(row, its output alone, its output in the batch), both with one row."""
    function: Function = _quiet(positional(import_function(subject)))
    spec, _ = find_spec(spec_name, OPERATORS)
    arguments = spec.make(case.shape, case.recipe, case.format, case.seed)
    whole = function(*arguments.values())
    for row in range(min(case.shape[0], ROWS_ALONE)):
        cut = slice(row, row + 1)
        yield row, function(*take(spec, arguments, cut).values()), whole[cut]


def _quiet(function: Function) -> Function:
    """Where a processor has no instructions for bfloat16, torch prints a stack trace once and goes on by another
    kernel. That kernel's bits are the ones compared here; the trace says nothing about them."""

    @wraps(function)
    def silent(*arguments: Any) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="mkldnn_matmul failed", category=UserWarning)
            return function(*arguments)

    return silent


def _at(subject: str, example: Example) -> Example:
    """The element of an example, computed by another function of the same kind."""
    for row, alone, batched in _pairs(subject, "linear", example.case):
        if row == example.index[0]:
            place = (0, *example.index[1:])
            differs = compare(alone[place], batched[place])
            return replace(
                example,
                subject=subject,
                alone=_number(alone[place]),
                batched=_number(batched[place]),
                ulps=differs.ulps if differs else 0,
            )
    raise AssertionError(f"{example.case} has no row {example.index[0]}")


def _number(value: torch.Tensor) -> Number:
    bits = numpy_bits(value)
    return Number(hexadecimal(float(value)), f"{int(bits):0{8 * bits.dtype.itemsize}b}")
