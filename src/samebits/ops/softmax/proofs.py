"""Proofs about the softmax: all 16-bit numbers, all pairs of bfloat16, grids in every arrangement, every row's tree.

Each is a function without arguments for the contract; what a test runs of it is said by parameters. On the CPU, and at
the end by Triton, where the same sets are walked on a GPU."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from samebits.contracts.call import Call
from samebits.contracts.enumeration import (
    Chunk,
    Judge,
    by_triton,
    enumerated,
    predicate_of,
    same_on_both,
    same_rows,
    within_its_bound,
)
from samebits.contracts.loading import load_contract
from samebits.contracts.orders import declared_order
from samebits.contracts.proof import Proof
from samebits.contracts.spec import Function
from samebits.native.launch_numbers import launching
from samebits.numerics.bits import compare
from samebits.numerics.order import text
from samebits.numerics.triples import triples
from samebits.ops.softmax import log_softmax, softmax
from samebits.ops.softmax.check import SPECS, launches
from samebits.ops.softmax.properties import OTHER_DTYPES

CONTRACT = load_contract(Path(__file__).with_name("contract.yaml"))
FINITE = {"bfloat16": 65_280, "float16": 63_488}
"""Finite numbers of each format: 2^16 less those whose exponent is all ones."""
LONGEST_ROW = 4096
# Sizes of a call: what a GPU walks quickly, and what half a gigabyte holds with all that judges it.
FIRSTS_A_CALL, ROWS_A_CALL = 16, 1 << 19
# exp of minus this is 0 in float32, however it rounds.
FAR_APART = 105.0
# Inputs whose exponentials are 1, one that vanishes beside a 1 while two of it do not, and 0.
ONE, SMALL, NOTHING = 0.0, -17.0, -torch.inf


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


def _unanswered(function: Function, n: int, questions: np.ndarray, dtype: torch.dtype = torch.float32) -> str:
    """The first question of the declared tree that the row's sum does not answer with yes.

    In row i the leaves a and b are small and c is 1: the sum exceeds 1 only if a and b meet before either meets c."""
    for rows in np.array_split(questions, max(1, questions.size * n // (3 << 22))):
        place = torch.arange(len(rows))
        x = torch.full((len(rows), n), NOTHING, dtype=dtype)
        a, b, c = (torch.from_numpy(column) for column in rows.T)
        x[place, a] = x[place, b] = SMALL
        x[place, c] = ONE
        # The element that is 1 weighs 1 / sum; its logarithm is -log(sum).
        together = function(x, dtype=torch.float32)[place, c] < (0 if function is log_softmax else 1)
        if not bool(together.all()):
            a, b, c = rows[int((~together).nonzero()[0])]
            return f"n = {n}: elements {a} and {b} do not meet before element {c}; declared lanes-256"
    return ""


def _replayed(n: int) -> str:
    """Rows of spread numbers: the bits of the order as it is written down."""
    x = torch.linspace(-20, 3, 4 * n).reshape(4, n)
    differs = compare(softmax(x), softmax(x, backend="reference"))
    return f"n = {n}: against the written order: {differs}" if differs is not None else ""


def _rotated(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A twin: right within rounding, other lanes meet."""
    return softmax(x.roll(1, -1), dtype=dtype).roll(-1, -1)


def every_tree(longest: int = LONGEST_ROW, widest: int = 1024) -> Proof:
    """The tree that measurement reveals is the declared one, for every length of a row.

    Every question that fixes the declared tree is put to the kernel; `widest` bounds what is asked of other formats,
    other instruction sets, and log_softmax."""
    decided, witness, trees = hashlib.sha256(), "", 0
    for n in range(1, longest + 1):
        order = declared_order("lanes-256", n)
        questions = triples(order) if n > 2 else np.zeros((0, 3), np.int64)
        decided.update(text(order).encode())
        witness = witness or _unanswered(softmax, n, questions) or _replayed(n)
        if n <= widest:
            witness = witness or _other_ways(n, questions)
        if witness:
            break
        trees += 1
    wrong: list[Callable[[int], str]] = [
        lambda n: _unanswered(_rotated, n, triples(declared_order("lanes-256", n))),
        lambda n: _unanswered(softmax, n, triples(declared_order("chain-1", n))),
    ]
    caught = sum(any(twin(n) for n in (3, 300)) for twin in wrong)
    return Proof(
        kind="order",
        cases=trees,
        expected=longest,
        planted=len(wrong),
        caught=caught,
        witness=witness,
        digest=decided.hexdigest(),
        bound=f"n <= {longest}, float32; 16-bit numbers, log_softmax and every instruction set for n <= {widest}",
    )


def _other_ways(n: int, questions: np.ndarray) -> str:
    wrong = _unanswered(log_softmax, n, questions)
    for dtype in (torch.bfloat16, torch.float16):
        wrong = wrong or _unanswered(softmax, n, questions, dtype)
    for numbers in launches("cpu", "float32"):
        if numbers["threads"] == 1 and not wrong:
            with launching(**numbers):
                wrong = _unanswered(softmax, n, questions)
    return wrong


every_number_alone_by_triton = by_triton(every_number_alone)
every_pair_of_bfloat16_by_triton = by_triton(every_pair_of_bfloat16)
every_logarithm_of_a_pair_by_triton = by_triton(every_logarithm_of_a_pair)
every_exact_shift_by_triton = by_triton(every_exact_shift)
every_constant_row_by_triton = by_triton(every_constant_row)
every_refusal_by_triton = by_triton(every_refusal)
every_arrangement_by_triton = by_triton(every_arrangement)
every_arrangement_of_logarithms_by_triton = by_triton(every_arrangement_of_logarithms)
softmax_on_both = partial(_on_both, "SM-OB107")
log_softmax_on_both = partial(_on_both, "SM-OB207")
