"""Proofs about the softmax's values: all 16-bit numbers, all pairs of bfloat16, shifts, constant rows, refusals.

Each is a function without arguments for the contract; what a test runs of it is said by parameters. On the CPU, and at
the end by Triton, where the same sets are walked on a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from samebits.contracts.call import Call
from samebits.contracts.enumeration import Chunk, Judge, by_triton, enumerated, predicate_of, within_its_bound
from samebits.contracts.loading import load_contract
from samebits.contracts.proof import Proof
from samebits.ops.softmax.check import SPECS
from samebits.ops.softmax.properties import OTHER_DTYPES

CONTRACT = load_contract(Path(__file__).with_name("contract.yaml"))
FINITE = {"bfloat16": 65_280, "float16": 63_488}
"""Finite numbers of each format: 2^16 less those whose exponent is all ones."""
LONGEST_ROW = 4096
# Sizes of a call: what a GPU walks quickly, and what half a gigabyte holds with all that judges it.
FIRSTS_A_CALL, ROWS_A_CALL = 16, 1 << 19
# exp of minus this is 0 in float32, however it rounds.
FAR_APART = 105.0


def finite_numbers(format: str) -> Tensor:
    """Every finite number of a 16-bit format."""
    patterns = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(getattr(torch, format))
    return patterns[patterns.isfinite()]


def _pairs(format: str, firsts: int) -> Iterator[Chunk]:
    """Every number of the format beside each of the first so many."""
    numbers = finite_numbers(format)
    for first in range(0, firsts, FIRSTS_A_CALL):
        x = torch.cartesian_prod(numbers[first : min(first + FIRSTS_A_CALL, firsts)], numbers)
        yield Chunk(arguments={"x": x}, format=format, members=len(x))


def _pairs_by_difference(largest: int) -> Iterator[Chunk]:
    """For each difference that two of bfloat16's numbers have in float32 a pair that has it, in both orders.

    A row enters the kernel as the differences from its maximum (cpu_kernel.cpp: row_shift) and in no other way; beyond
    FAR_APART every exponential is 0. `largest`: so many of the numbers take their turn as the maximum."""
    numbers = np.unique(finite_numbers("bfloat16").float().numpy())
    seen = np.zeros(int(np.float32(FAR_APART).view(np.uint32)) + 1, bool)
    waiting: list[np.ndarray] = []
    for place in range(len(numbers) - largest, len(numbers)):
        # One beyond is kept: the nearest number that is too far away.
        first = max(np.searchsorted(numbers, numbers[place] - np.float32(FAR_APART)) - 1, 0)
        below = numbers[first : place + 1]
        pattern = np.minimum((numbers[place] - below).view(np.uint32), len(seen) - 1)
        new = ~seen[pattern]
        seen[pattern] = True
        waiting.append(np.stack([np.full(new.sum(), numbers[place]), below[new]], 1))
        if sum(map(len, waiting)) >= ROWS_A_CALL or place == len(numbers) - 1:
            pairs = torch.from_numpy(np.concatenate(waiting)).bfloat16()
            waiting = []
            yield Chunk(arguments={"x": torch.cat([pairs, pairs.flip(1)])}, format="bfloat16", members=2 * len(pairs))


def _differences(largest: int) -> int:
    """How many there are, counted without making a row; all that is too far apart is one."""
    numbers = np.unique(finite_numbers("bfloat16").float().numpy())
    seen = np.zeros(int(np.float32(FAR_APART).view(np.uint32)) + 1, bool)
    for place in range(len(numbers) - largest, len(numbers)):
        first = np.searchsorted(numbers, numbers[place] - np.float32(FAR_APART))
        pattern = (numbers[place] - numbers[first : place + 1]).view(np.uint32)
        seen[pattern[pattern < len(seen)]] = True
    seen[-1] = True
    return int(np.count_nonzero(seen))


def _accurate(call: Call) -> str:
    """`accuracy` of the output. What lies within half a unit of its last place is within any bound; the rest is asked.

    Few rows are asked, or the bound of four thousand million rows would take hours."""
    exact = call.reference(call.arguments["x"].double())
    half = torch.finfo(call.output.dtype).eps / 2
    far = ((call.output.double() - exact).abs() > half * exact).any(-1)
    if not bool(far.any()):
        return ""
    x, y = call.arguments["x"][far], call.output[far]
    x, y = x.cpu(), y.cpu()
    bounded = SPECS["softmax"].exact({"x": x}, torch.ones_like(y), call.sum_error)["output"]
    wrong = ~((y.double() - bounded.exact).abs() <= bounded.allowed)
    return f"{int(wrong.sum())} beyond the bound; first row {x[wrong.any(-1)][0].tolist()}" if bool(wrong.any()) else ""


def _own(*identifiers: str) -> dict[str, Judge]:
    return {identifier: predicate_of(CONTRACT, identifier) for identifier in identifiers}


def every_pair_of_bfloat16(firsts: int = FINITE["bfloat16"]) -> Proof:
    """n = 2: sum, interval, order of weights and accuracy for every pair of finite bfloat16 numbers."""
    judges = {**_own("SM-OB1", "SM-OB2", "SM-OB3"), "SM-OB106": _accurate}
    twins = {"SM-OB1": ["SM-MU1"], "SM-OB2": ["SM-MU1"], "SM-OB3": ["SM-MU4"], "SM-OB106": ["SM-MU7"]}
    return enumerated(
        CONTRACT,
        SPECS["softmax"],
        partial(_pairs, "bfloat16", firsts),
        judges,
        twins,
        expected=firsts * FINITE["bfloat16"],
        bound=f"n = 2, {firsts} x {FINITE['bfloat16']} pairs of finite bfloat16 numbers",
    )


def every_difference_of_bfloat16(largest: int = FINITE["bfloat16"] - 1) -> Proof:
    """n = 2: the same for one pair of each difference, in both orders; +0 and -0 are one number here."""
    judges = {**_own("SM-OB1", "SM-OB2", "SM-OB3"), "SM-OB106": _accurate}
    twins = {"SM-OB1": ["SM-MU1"], "SM-OB2": ["SM-MU1"], "SM-OB3": ["SM-MU4"], "SM-OB106": ["SM-MU7"]}
    differences = _differences(largest)
    return enumerated(
        CONTRACT,
        SPECS["softmax"],
        partial(_pairs_by_difference, largest),
        judges,
        twins,
        expected=2 * differences,
        bound=f"n = 2, a pair for each of the {differences} differences of finite bfloat16 numbers, in both orders",
    )


def _alone() -> Iterator[Chunk]:
    for format, count in FINITE.items():
        yield Chunk(arguments={"x": finite_numbers(format)[:, None]}, format=format, members=count)


def every_number_alone() -> Proof:
    """n = 1 over all finite numbers of both 16-bit formats."""
    judges = _own("SM-OB1", "SM-OB2", "SM-OB3", "SM-OB5")
    judges["SM-OB106"] = partial(within_its_bound, SPECS["softmax"])
    twins = {"SM-OB1": ["SM-MU1"], "SM-OB2": ["SM-MU1"], "SM-OB5": ["SM-MU2"], "SM-OB106": ["SM-MU7"]}
    return enumerated(
        CONTRACT,
        SPECS["softmax"],
        _alone,
        judges,
        twins,
        expected=sum(FINITE.values()),
        bound=f"n = 1, all {FINITE['bfloat16']} finite bfloat16 and {FINITE['float16']} finite float16 numbers",
    )


def every_logarithm_of_a_pair(firsts: int = 512) -> Proof:
    """log_softmax: n = 1 over all finite numbers, and n = 2 with a first number from a grid of float16's."""
    numbers = finite_numbers("float16")
    grid = numbers[:: len(numbers) // firsts][:firsts]

    def chunks() -> Iterator[Chunk]:
        yield from _alone()
        for first in grid:
            x = torch.stack([first.expand(numbers.shape), numbers], 1)
            yield Chunk(arguments={"x": x}, format="float16", members=len(numbers))

    judges = _own("SM-OB9")
    judges["SM-OB206"] = partial(within_its_bound, SPECS["log_softmax"])
    return enumerated(
        CONTRACT,
        SPECS["log_softmax"],
        chunks,
        judges,
        {"SM-OB9": ["SM-MU5"], "SM-OB206": ["SM-MU9"]},
        expected=sum(FINITE.values()) + firsts * FINITE["float16"],
        bound=f"n = 1, all finite 16-bit numbers; n = 2, {firsts} x {FINITE['float16']} pairs of float16 numbers",
    )


def every_exact_shift() -> Proof:
    """Every pair of whole numbers from -64 to 64, moved by a shift that is exact, in every format."""
    whole = torch.arange(-64, 65).float()

    def chunks() -> Iterator[Chunk]:
        for format in ("float32", "bfloat16", "float16"):
            x = torch.cartesian_prod(whole, whole).to(getattr(torch, format))
            yield Chunk(arguments={"x": x}, format=format, members=len(x))

    return enumerated(
        CONTRACT,
        SPECS["softmax"],
        chunks,
        _own("SM-OB4"),
        {"SM-OB4": ["SM-MU1"]},
        expected=3 * 129**2,
        bound="n = 2, whole numbers from -64 to 64, shift 32, three formats",
    )


def every_constant_row(longest: int = LONGEST_ROW) -> Proof:
    """n equal elements for every n, and every finite 16-bit number three times."""

    def chunks() -> Iterator[Chunk]:
        for format in ("float32", "bfloat16", "float16"):
            for n in range(1, longest + 1):
                x = torch.full((1, n), 1.0 + n % 7, dtype=getattr(torch, format))
                yield Chunk(arguments={"x": x}, format=format, members=1)
        for format, count in FINITE.items():
            x = finite_numbers(format)[:, None].repeat(1, 3)
            yield Chunk(arguments={"x": x}, format=format, members=count)

    return enumerated(
        CONTRACT,
        SPECS["softmax"],
        chunks,
        _own("SM-OB6"),
        {"SM-OB6": ["SM-MU2"]},
        expected=3 * longest + sum(FINITE.values()),
        bound=f"n <= {longest} in three formats; n = 3, all finite 16-bit numbers",
    )


def every_refusal(largest: int = 16) -> Proof:
    """Rows and columns from 1 on, in three formats: every other dtype, axis and empty axis is refused."""

    def chunks() -> Iterator[Chunk]:
        for format in ("float32", "bfloat16", "float16"):
            for rows, columns in itertools.product(range(1, largest + 1), repeat=2):
                x = torch.ones(rows, columns, dtype=getattr(torch, format))
                yield Chunk(arguments={"x": x}, format=format, members=1)

    return enumerated(
        CONTRACT,
        SPECS["softmax"],
        chunks,
        _own("SM-OB10"),
        {"SM-OB10": ["SM-MU6"]},
        expected=3 * largest**2,
        bound=f"1 to {largest} rows and columns, three formats, {len(OTHER_DTYPES)} other dtypes",
    )


every_number_alone_by_triton = by_triton(every_number_alone)
every_pair_of_bfloat16_by_triton = by_triton(every_pair_of_bfloat16)
every_logarithm_of_a_pair_by_triton = by_triton(every_logarithm_of_a_pair)
every_exact_shift_by_triton = by_triton(every_exact_shift)
every_constant_row_by_triton = by_triton(every_constant_row)
every_refusal_by_triton = by_triton(every_refusal)
