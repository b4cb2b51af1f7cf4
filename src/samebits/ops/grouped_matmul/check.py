"""How a checker drives `grouped_matmul`: inputs, exact values and bounds, a probe, the resumed gradient, launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from samebits.contracts.spec import Arguments, Bounded, Function, OperatorSpec, Probe
from samebits.native.launch_numbers import cpu_launches
from samebits.numerics.elementary import philox_uint32_native
from samebits.numerics.recipes import make
from samebits.ops.grouped_matmul import grouped_matmul_accumulate_
from samebits.ops.grouped_matmul.reference import grouped_matmul64
from samebits.ops.rounding import allowed_error

# The numbers of experts draw from a stream of their own.
EXPERT_STREAM = 1
# A matrix unit adds 16 rows at a time.
BLOCK = 16
PROBED_EXPERTS = 3


def experts_of(rows: int, experts: int, seed: int) -> Tensor:
    """An expert for each of the last 16 rows or fewer, and one for each 16 rows before: a batch that is cut at a
    multiple of 16 rows is then cut at a multiple of 16 rows of every expert."""
    drawn = philox_uint32_native(seed, EXPERT_STREAM, rows, threads=1).astype(np.int64) * experts >> 32
    whole = (rows - 1) // BLOCK * BLOCK
    drawn[:whole] = np.repeat(drawn[:whole:BLOCK], BLOCK)
    return torch.from_numpy(drawn)


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    rows, depth, columns, experts = shape

    def tensor(sizes: tuple[int, ...], stream: int) -> Tensor:
        return torch.from_numpy(make(recipe, sizes, 2 * seed + stream, format)).to(getattr(torch, format))

    return {
        "x": tensor((rows, depth), 0),
        "weight": tensor((experts, depth, columns), 1),
        "expert": experts_of(rows, experts, seed),
    }


def _exact(arguments: Arguments, dy: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    x, weight, expert = arguments["x"].double(), arguments["weight"].double(), arguments["expert"]
    dy64 = dy.double()

    def bounded(exact: Tensor, magnitude: Tensor, terms: int) -> Bounded:
        return Bounded(exact=exact, allowed=allowed_error(exact, magnitude, error(terms), terms, 0, dy.dtype))

    def over_rows(left: Tensor, right: Tensor) -> Tensor:
        own = (expert == number for number in range(weight.shape[0]))
        return torch.stack([left[rows].T @ right[rows] for rows in own])

    turned, most = weight.transpose(1, 2), int(torch.bincount(expert).max())
    return {
        "output": bounded(
            grouped_matmul64(x, weight, expert), grouped_matmul64(x.abs(), weight.abs(), expert), x.shape[1]
        ),
        "x": bounded(
            grouped_matmul64(dy64, turned, expert), grouped_matmul64(dy64.abs(), turned.abs(), expert), dy.shape[1]
        ),
        "weight": bounded(over_rows(x, dy64), over_rows(x.abs(), dy64.abs()), most),
    }


def _probe(function: Function, terms: int, rows: int, row: int, format: str, device: str) -> Probe:
    """Row `row` holds the numbers, every weight is all ones: output column 0 is their sum."""
    dtype = getattr(torch, format)
    weight = torch.ones(PROBED_EXPERTS, terms, max(terms, 16), dtype=dtype, device=device)
    batch = torch.ones(rows, terms, dtype=dtype, device=device)
    expert = torch.arange(rows, device=device) % PROBED_EXPERTS

    def run(values: np.ndarray) -> float:
        batch[row] = torch.from_numpy(values).to(dtype)
        return float(function(batch, weight, expert)[row, 0])

    return run


def launches(backend: str, format: str) -> Sequence[Mapping[str, object]]:
    """Threads times instruction sets on the CPU; every row of the launch table by Triton."""
    if backend == "cpu":
        return cpu_launches()
    from samebits.ops.grouped_matmul.launch_table import TABLE

    return [{"launch": launch} for launch in TABLE[format]]


def _resume(arguments: Arguments, dy: Tensor, sums: dict[str, Tensor] | None, backend: str) -> dict[str, Tensor]:
    x, weight, expert = arguments["x"], arguments["weight"], arguments["expert"]
    sums = sums or {"weight": torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)}
    grouped_matmul_accumulate_(sums["weight"], x, dy, expert, backend=backend)
    return sums


SPECS = {
    "grouped_matmul": OperatorSpec(
        name="grouped_matmul",
        row_arguments=("x", "expert"),
        shared_arguments=("weight",),
        shape_axes="MKNE",
        make=_make,
        exact=_exact,
        probe=_probe,
        launches=launches,
        resume=_resume,
        without_gradient=("expert",),
        exact_specials=True,
    )
}
