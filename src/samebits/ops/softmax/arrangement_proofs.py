"""Proofs that a softmax's rows keep their bits: a grid of values in every arrangement of rows, and on CPU and GPU.

Each is a function without arguments for the contract; what a test runs of it is said by parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch

from samebits.contracts.call import Call
from samebits.contracts.enumeration import Chunk, Judge, by_triton, enumerated, same_on_both, same_rows
from samebits.contracts.proof import Proof
from samebits.native.launch_numbers import launching
from samebits.numerics.bits import compare
from samebits.ops.softmax.check import SPECS, launches
from samebits.ops.softmax.proofs import CONTRACT, FINITE, finite_numbers


def _reversed(call: Call) -> str:
    rows = len(call.output)
    parts = [torch.arange(rows - 1, -1, -1), torch.arange(0, rows, 2), torch.tensor([rows // 2])]
    alone = (slice(row, row + 1) for row in range(rows))
    return same_rows(call, parts, "rows in another batch") or same_rows(call, alone, "each row alone", backward=False)


def _padded(call: Call) -> str:
    x = call.arguments["x"]
    for fill in (torch.nan, 0.0):
        padding = torch.full_like(x[:5], fill)
        found = call.again(x=torch.cat([padding, x, padding]))[5:-5]
        differs = compare(call.output, found)
        if differs is not None:
            return f"beside rows of {fill}: {differs}"
    return ""


def _chunked(call: Call) -> str:
    rows = len(call.output)
    for length in (7, 1000):
        parts = [slice(start, start + length) for start in range(0, rows, length)]
        wrong = same_rows(call, parts, f"chunks of {length} rows", backward=length > 7)
        if wrong:
            return wrong
    return ""


def _launched(call: Call) -> str:
    for numbers in launches(call.backend, call.format):
        with launching(**numbers):
            wrong = same_rows(call, [slice(None)], str(numbers))
        if wrong:
            return wrong
    return ""


def _again(call: Call) -> str:
    same = [slice(None)] * 3
    return same_rows(call, same, "again", backward=False) or same_rows(call, same, "again with gradients")


def _grid(values: int) -> Iterator[Chunk]:
    """Every row of two out of so many 16-bit numbers, and of three float32 numbers whose sums must round."""
    for format in FINITE:
        numbers = finite_numbers(format)
        some = numbers[:: len(numbers) // values][:values]
        yield Chunk(arguments={"x": torch.cartesian_prod(some, some)}, format=format, members=values**2)
    few = torch.linspace(-9, 2, _cube_side(values))
    yield Chunk(arguments={"x": torch.cartesian_prod(few, few, few)}, format="float32", members=len(few) ** 3)


def _cube_side(values: int) -> int:
    """So many numbers that their triples are about as many as the pairs."""
    return round(math.pow(values, 2 / 3))


def _arranged(spec: str, judges: Mapping[str, Judge], twins: Mapping[str, Sequence[str]], values: int) -> Proof:
    side = _cube_side(values)
    return enumerated(
        CONTRACT,
        SPECS[spec],
        partial(_grid, values),
        judges,
        twins,
        expected=2 * values**2 + side**3,
        bound=f"n = 2 over {values} bfloat16 and float16 numbers, n = 3 over {side} of float32, forward and backward",
    )


def every_arrangement(values: int = 128) -> Proof:
    """Rows of a grid in other batches, with padding, in chunks, under other launches and again: the same bits."""
    judges = {
        "SM-OB102": _reversed,
        "SM-OB101": _again,
        "SM-OB103": _padded,
        "SM-OB104": _chunked,
        "SM-OB105": _launched,
    }
    twins = {
        "SM-OB102": ["SM-MU102"],
        "SM-OB101": ["SM-MU101"],
        "SM-OB103": ["SM-MU103"],
        "SM-OB104": ["SM-MU104"],
        "SM-OB105": ["SM-MU105"],
    }
    return _arranged("softmax", judges, twins, values)


def every_arrangement_of_logarithms(values: int = 128) -> Proof:
    """The same for log_softmax."""
    judges = {"SM-OB202": _reversed, "SM-OB203": _padded, "SM-OB205": _launched}
    twins = {"SM-OB202": ["SM-MU202"], "SM-OB203": ["SM-MU203"], "SM-OB205": ["SM-MU205"]}
    return _arranged("log_softmax", judges, twins, values)


def _widths(longest: int) -> Iterator[Chunk]:
    """Four rows of every width, and every row of three out of 25 float32 numbers."""
    for n in range(1, longest + 1):
        x = torch.linspace(-20, 3, 4 * n)[torch.arange(4 * n) * 2_654_435_761 % (4 * n)].reshape(4, n)
        yield Chunk(arguments={"x": x}, format="float32", members=4)
    few = torch.linspace(-9, 2, 25)
    yield Chunk(arguments={"x": torch.cartesian_prod(few, few, few)}, format="float32", members=25**3)


def _on_both(identifier: str, longest: int = 600) -> Proof:
    """The promise `device`: float32 on the CPU and on a GPU."""
    spec = SPECS[CONTRACT.subjects[CONTRACT.obligations[identifier].subject].spec]
    return same_on_both(
        CONTRACT,
        spec,
        identifier,
        partial(_widths, longest),
        expected=4 * longest + 25**3,
        bound=f"4 rows of each width up to {longest}, n = 3 over 25 numbers, forward and backward",
    )


every_arrangement_by_triton = by_triton(every_arrangement)
every_arrangement_of_logarithms_by_triton = by_triton(every_arrangement_of_logarithms)
softmax_on_both = partial(_on_both, "SM-OB107")
log_softmax_on_both = partial(_on_both, "SM-OB207")
