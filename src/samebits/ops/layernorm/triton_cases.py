"""What is traced and compiled of LayerNorm by Triton: rows of 600, and the shared gradients resumed at cuts.

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
from samebits.ops.layernorm import triton_kernel
from samebits.ops.layernorm.check import launches

# Three blocks of lanes, the last of them ragged.
WIDTH: Final = 600
ROWS, COLUMNS = 40, 24
# Rows that a program keeps; the operator's own launch keeps one of few, and those of the check keep none.
KEPT: Final = RowLaunch(rows=2, columns=1024, warps=4)


def _launches(format: str) -> Sequence[object]:
    return [*checked(launches)(format), KEPT]


def _forward(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
    (x,) = by_rows(memory, dtype, x=(m, WIDTH))
    weight, bias = shared(memory, dtype, weight=(WIDTH,), bias=(WIDTH,))
    y, mean, rstd = triton_kernel.forward(x, weight, bias, 1e-5)
    return {"y": result(y), "mean": result(mean), "rstd": result(rstd)}


def _backward(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
    dy, x = by_rows(memory, dtype, dy=(m, WIDTH), x=(m, WIDTH))
    mean, rstd = by_rows(memory, torch.float32, mean=(m,), rstd=(m,))
    (weight,) = shared(memory, dtype, weight=(WIDTH,))
    return {"dx": result(triton_kernel.backward_input(dy, x, weight, mean, rstd))}


def _columns(memory: Memory, dtype: torch.dtype, cuts: tuple[int, ...]) -> Outputs:
    dweight, dbias = shared(memory, torch.float32, dweight=(COLUMNS,), dbias=(COLUMNS,))
    for first, last in pairwise((0, *cuts, ROWS)):
        dy, x = (torch.zeros(last - first, COLUMNS, dtype=dtype) for _ in range(2))
        mean, rstd = (torch.zeros(last - first) for _ in range(2))
        rows_of_a_sum(memory, first, dy=dy, x=x, mean=mean, rstd=rstd)
        triton_kernel.backward_weight(dy, x, mean, rstd, dweight)
        triton_kernel.backward_bias(dy, dbias)
    return {"dweight": one_row(dweight), "dbias": one_row(dbias)}


KERNELS = TracedKernels(
    cases=(
        over_rows("layernorm of 600", _forward, 3, _launches),
        over_rows("the gradient of its input", _backward, 1, _launches),
        over_cuts(
            "the gradients of weight and bias over 40 rows, cut at",
            _columns,
            2,
            checked(launches),
            ((), (16,), (7, 20)),
        ),
    )
)
