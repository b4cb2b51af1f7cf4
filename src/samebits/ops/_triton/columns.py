"""Sums over rows, column by column: the gradients that a normalisation's weight and bias have. Chooses the kernel.

Knows no operator. A column is one chain, rows ascending, resumed from its accumulator; tiles decide speed alone, and so
does whether the kernel is the one by Triton, which is here, or the one by Gluon of hopper_columns.py."""

from __future__ import annotations

from functools import partial
from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from samebits.ops._triton import hopper_columns
from samebits.ops._triton.device import on_device
from samebits.ops._triton.forced import forced_launch
from samebits.ops._triton.launch import run
from samebits.ops._triton.rows import RowLaunch, aligned, block_of, load_rows
from samebits.ops._triton.side_by_side import waits
from samebits.ops._triton.sizes import cdiv

COLUMN_LAUNCH: Final = RowLaunch(rows=128, columns=32, warps=4, stages=3)


@triton.jit(
    do_not_specialize=["M", "H"],
    do_not_specialize_on_alignment=["dy_ptr", "x_ptr", "mean_ptr", "rstd_ptr", "accumulator_ptr"],
)
def column_chains(
    dy_ptr,
    x_ptr,
    mean_ptr,
    rstd_ptr,
    accumulator_ptr,
    M: tl.int32,
    H: tl.int32,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """accumulator <- accumulator + round(dy * xhat), or + dy where there is no x; xhat = (x - mean) * rstd, or
    x * rstd where there is no mean."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    accumulator = tl.load(accumulator_ptr + columns, mask=columns < H, other=0.0)[None, :]
    ones = tl.full((1, ROWS), 1.0, tl.float32)
    # The neutral element of addition: +0 would turn a sum of -0 into +0. A literal -0.0 would arrive as +0.0.
    minus_zero = tl.full((ROWS, COLUMNS), -(2**31), tl.int32).to(tl.float32, bitcast=True)
    for first in range(0, M, ROWS):
        rows = first + tl.arange(0, ROWS)
        offsets, inside, _ = block_of(rows, tl.program_id(0) * COLUMNS, M, H, COLUMNS, ALIGNED)
        terms = load_rows(dy_ptr, offsets, inside, ALIGNED)
        if x_ptr is not None:
            x = load_rows(x_ptr, offsets, inside, ALIGNED)
            if mean_ptr is not None:
                x = x - tl.load(mean_ptr + rows, mask=rows < M, other=0.0)[:, None]
            terms = terms * (x * tl.load(rstd_ptr + rows, mask=rows < M, other=0.0)[:, None])
        terms = tl.where(inside, terms, minus_zero)
        # A dot with ones in full float32 is a chain of fma(1, term, accumulator): exact additions in order of the rows.
        accumulator = tl.dot(ones, terms, accumulator, input_precision="ieee", out_dtype=tl.float32)
    tl.store(accumulator_ptr + columns[None, :], accumulator, mask=(columns < H)[None, :])


def add_rows(
    dy_MH: Tensor,
    x_MH: Tensor | None,
    mean_M: Tensor | None,
    rstd_M: Tensor | None,
    accumulator_H: Tensor,
    launch: RowLaunch | None = None,
) -> None:
    """The chains over rows, resumed from the accumulator (float32, contiguous), in place."""
    (m, width), operands = dy_MH.shape, (dy_MH, x_MH, mean_M, rstd_M)
    launch = launch or forced_launch(RowLaunch)
    if launch is None:
        specialised = hopper_columns.launch_for(*operands)
        if specialised is not None:
            start = partial(hopper_columns.add_rows, *operands, accumulator_H, specialised)
            programs = cdiv(width, specialised.columns)
            if not waits(dy_MH.device, start, programs, accumulator_H.data_ptr()):
                start()
            return
        launch = COLUMN_LAUNCH
    with on_device(dy_MH):
        run(
            column_chains,
            cdiv(width, launch.columns),
            (*operands, accumulator_H, m, width),
            warps=launch.warps,
            stages=launch.stages,
            ROWS=launch.rows,
            COLUMNS=launch.columns,
            ALIGNED=aligned(dy_MH, x_MH),
        )
