"""Proofs about operators that compute every element alone: all 16-bit numbers, side by side and in every arrangement.

Knows no operator; an operator says which argument takes the numbers and what stands beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor

from samebits.contracts.call import Call
from samebits.contracts.enumeration import Chunk, Judge, enumerated, predicate_of, same_rows, within_its_bound
from samebits.contracts.language import PROMISES, Contract
from samebits.contracts.proof import Proof
from samebits.contracts.spec import Arguments, OperatorSpec
from samebits.native.launch_numbers import launching
from samebits.numerics.bits import compare

FINITE: Final = {"bfloat16": 65_280, "float16": 63_488}
"""Finite numbers of each format: 2^16 less those whose exponent is all ones."""
ROWS: Final = 256
"""The rows that arrangements are made of: their widths, 255 and 248, are no multiple of any block."""


def finite_numbers(format: str) -> Tensor:
    """Every finite number of a 16-bit format."""
    patterns = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(getattr(torch, format))
    return patterns[patterns.isfinite()]


def every_number(
    contract: Contract,
    spec: OperatorSpec,
    identifiers: Sequence[str],
    beside: Callable[[Tensor], Arguments],
    below: float = math.inf,
) -> Proof:
    """The obligations of one subject on all finite numbers of both formats, twinned with all their mutants.

    Predicates see the numbers as one row, so that any two of them are compared; promises see them as ROWS rows.
    `below`, a power of two, leaves out larger magnitudes."""
    promised = contract.obligations[identifiers[0]].name in PROMISES
    judges = {identifier: _judge(contract, spec, identifier) for identifier in identifiers}
    twins = {identifier: contract.obligations[identifier].mutants for identifier in identifiers}
    counts = {format: _count(format, below) for format in FINITE}
    formats = " and ".join(f"{count} finite {format} numbers" for format, count in counts.items())
    limit = "" if math.isinf(below) else f" of magnitude below 2^{math.log2(below):.0f}"
    return enumerated(
        contract,
        spec,
        partial(_chunks, beside, below, ROWS if promised else 1),
        judges,
        twins,
        expected=sum(counts.values()),
        bound=f"all {formats}{limit}, in {ROWS if promised else 1} rows",
    )


def _count(format: str, below: float) -> int:
    """How many finite numbers there are: both signs, each exponent field, each fraction."""
    info = torch.finfo(getattr(torch, format))
    fields = FINITE[format] * info.eps / 2
    if not math.isinf(below) and below <= info.max:
        fields = math.log2(below) - math.log2(info.smallest_normal) + 1
    return int(2 * fields / info.eps)


def _chunks(beside: Callable[[Tensor], Arguments], below: float, rows: int) -> Iterator[Chunk]:
    for format in FINITE:
        numbers = finite_numbers(format)
        numbers = numbers[numbers.abs() < below]
        yield Chunk(arguments=beside(numbers.view(rows, -1)), format=format, members=len(numbers))


def _judge(contract: Contract, spec: OperatorSpec, identifier: str) -> Judge:
    name = contract.obligations[identifier].name
    judges: dict[str, Judge] = {
        "accuracy": partial(within_its_bound, spec),
        "repeat": _again,
        "batch": _alone_and_shuffled,
        "padding": _padded,
        "chunk": partial(
            same_rows, parts=[slice(0, 1), slice(1, 100), slice(100, 255), slice(255, ROWS)], words="chunk"
        ),
        "tile": partial(_other_launches, spec),
    }
    return judges[name] if name in PROMISES else predicate_of(contract, identifier)


def _again(call: Call) -> str:
    """The same call three times in a row, forward, then backward."""
    for again in (call.again(), call.again(), call.again()):
        differs = compare(call.output, again)
        if differs is not None:
            return f"again: {differs}"
    return same_rows(call, [slice(None)] * 3, "again")


def _alone_and_shuffled(call: Call) -> str:
    """Every row alone, pairs, and all rows in other orders."""
    alone = [slice(row, row + 1) for row in range(ROWS)]
    pairs = [torch.tensor([row, ROWS - 1 - row]) for row in range(0, ROWS, 16)]
    orders = [torch.arange(ROWS - 1, -1, -1), torch.arange(ROWS) * 2654435761 % ROWS]
    return same_rows(call, [*alone, *pairs, *orders], "rows alone, in pairs, shuffled")


def _padded(call: Call) -> str:
    """Rows of NaN before and of zeros after change nothing, whichever rows stand between them."""
    for first in range(0, ROWS, 32):
        rows = {name: value[first : first + 32] for name, value in call.arguments.items()}
        padded = {name: _between(value, torch.nan) for name, value in rows.items()}
        dy = torch.ones_like(call.output[first : first + 32])
        bare = {"output": call.again(None, **rows), **call.gradients(dy, (), None, **rows)}
        found = {"output": call.again(None, **padded), **call.gradients(_between(dy, 0.0), (), None, **padded)}
        for name, value in found.items():
            differs = compare(bare[name], value[3:-5])
            if differs is not None:
                return f"rows from {first} on, padded: {name}: {differs}"
    return ""


def _between(rows: Tensor, fill: float) -> Tensor:
    return torch.cat([rows.new_full((3, rows.shape[1]), fill), rows, rows.new_zeros(5, rows.shape[1])])


def _other_launches(spec: OperatorSpec, call: Call) -> str:
    """Every launch that the spec names, forward and backward."""
    dy = torch.ones_like(call.output)
    whole = {"output": call.output, **call.gradients(dy)}
    for numbers in spec.launches(call.backend, call.format):
        with launching(**numbers):
            found = {"output": call.again(), **call.gradients(dy)}
        for name, value in found.items():
            differs = compare(whole[name], value)
            if differs is not None:
                return f"launch {dict(numbers)}: {name}: {differs}"
    return ""
