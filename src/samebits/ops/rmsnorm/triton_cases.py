"""What is traced and compiled of RMSNorm by Triton: rows of 600, and the weight's gradient resumed at cuts.

The kernel that sums over rows on Hopper is not: no tracer knows Gluon. tests/ops/test_column_chains.py runs it on the
CPU, tests/gpu/test_column_chains.py compares it with the one that is traced."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import torch

from samebits.contracts.traced import (
    Memory,
    Outputs,
    TracedKernels,
    by_rows,
    checked,
    one_row,
    over_cuts,
    over_rows,
    result,
    rows_of_a_sum,
    shared,
)
from samebits.ops._triton.rows import RowLaunch
from samebits.ops.rmsnorm import triton_kernel
from samebits.ops.rmsnorm.check import launches

# Three blocks of lanes, the last of them ragged.
WIDTH: Final = 600
ROWS, COLUMNS = 40, 24
# Rows that a program keeps; the operator's own launch keeps one of few, and those of the check keep none.
KEPT: Final = RowLaunch(rows=2, columns=1024, warps=4)


def _launches(format: str) -> Sequence[object]:
    return [*checked(launches)(format), KEPT]


def _forward(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
    x, residual = by_rows(memory, dtype, x=(m, WIDTH), residual=(m, WIDTH))
    (weight,) = shared(memory, dtype, weight=(WIDTH,))
    y, rstd, hidden = triton_kernel.forward(x, weight, 1e-6, residual)
    return {"y": result(y), "rstd": result(rstd), "hidden": result(hidden)}


def _backward(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
    dy, hidden, more = by_rows(memory, dtype, dy=(m, WIDTH), hidden=(m, WIDTH), dhidden=(m, WIDTH))
    (rstd,) = by_rows(memory, torch.float32, rstd=(m,))
    (weight,) = shared(memory, dtype, weight=(WIDTH,))
    return {"dx": result(triton_kernel.backward_input(dy, hidden, weight, rstd, more))}


def _dweight(memory: Memory, dtype: torch.dtype, cuts: tuple[int, ...]) -> Outputs:
    (accumulator,) = shared(memory, torch.float32, accumulator=(COLUMNS,))
    for first, last in pairwise((0, *cuts, ROWS)):
        dy, hidden = (torch.zeros(last - first, COLUMNS, dtype=dtype) for _ in range(2))
        rstd = torch.zeros(last - first)
        rows_of_a_sum(memory, first, dy=dy, hidden=hidden, rstd=rstd)
        triton_kernel.backward_weight(dy, hidden, rstd, accumulator)
    return {"dweight": one_row(accumulator)}


KERNELS = TracedKernels(
    cases=(
        over_rows("rmsnorm of 600 with a residual", _forward, 3, _launches),
        over_rows("the gradient of its input", _backward, 1, _launches),
        over_cuts(
            "the gradient of the weight over 40 rows, cut at", _dweight, 1, checked(launches), ((), (16,), (7, 20))
        ),
    )
)
