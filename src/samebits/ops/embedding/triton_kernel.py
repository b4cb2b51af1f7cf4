"""The embedding by Triton: rows are copied; in the gradient a program owns columns of a table row, and so their chains.

Knows nothing of autograd, validation or empty tensors; the public function does. A stable sort of the ids brings the
positions of a row together without changing their order; integers sort the same everywhere. Rows, columns and warps
decide speed."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from samebits.ops._triton.device import on_device
from samebits.ops._triton.forced import forced_launch
from samebits.ops._triton.launch import run
from samebits.ops._triton.rows import RowLaunch
from samebits.ops._triton.sizes import cdiv

# M positions, V rows of the table, H their width.

COPY_LAUNCH: Final = RowLaunch(rows=4, columns=512, warps=4)
# At least 16 rows for the dot that adds them.
GRADIENT_LAUNCH: Final = RowLaunch(rows=16, columns=128, warps=4)


@triton.jit(do_not_specialize=["M", "H"], do_not_specialize_on_alignment=["ids_ptr", "weight_ptr", "y_ptr"])
def embedding_forward(
    ids_ptr,
    weight_ptr,
    y_ptr,
    M: tl.int32,
    H: tl.int32,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """y[m] = weight[ids[m]]."""
    # A multiple of 8 in a form that the compiler can see.
    length = H // 8 * 8 if ALIGNED else H
    blocks = tl.cdiv(H, COLUMNS)
    rows = (tl.program_id(0) // blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    ids = tl.load(ids_ptr + rows, mask=rows < M, other=0)
    inside = (rows < M)[:, None] & (columns < length)[None, :]
    source = weight_ptr + (ids[:, None] * length + columns[None, :])
    target = y_ptr + (rows[:, None] * length + columns[None, :])
    if ALIGNED:
        source = tl.multiple_of(source, (16, 16))
        target = tl.multiple_of(target, (16, 16))
    tl.store(target, tl.load(source, mask=inside), mask=inside)


@triton.jit(
    do_not_specialize=["M", "H", "padding"],
    do_not_specialize_on_alignment=["dy_ptr", "sorted_ptr", "positions_ptr", "sums_ptr"],
)
def embedding_backward(
    dy_ptr,
    sorted_ptr,
    positions_ptr,
    sums_ptr,
    M: tl.int32,
    H: tl.int32,
    padding: tl.int64,
    RESUME: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """sums[id] <- round(sums[id] + dy[m] + dy[m'] + ...), the positions of `id` ascending.

    One program for every place in the sorted ids; only the first place of an id has work to do."""
    blocks = tl.cdiv(H, COLUMNS)
    place = (tl.program_id(0) // blocks).to(tl.int64)
    columns = (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    token = tl.load(sorted_ptr + place)
    before = tl.load(sorted_ptr + place - 1, mask=place > 0, other=-1)
    if (token != before) & (token != padding):
        sums = sums_ptr + (token * H + columns[None, :])
        exists = (columns < H)[None, :]
        accumulator = tl.zeros((1, COLUMNS), dtype=tl.float32)
        if RESUME:
            accumulator = tl.load(sums, mask=exists, other=0.0)
        ones = tl.full((1, ROWS), 1.0, tl.float32)
        # The neutral element of addition: +0 would turn a sum of -0 into +0. A literal -0.0 would arrive as +0.0.
        minus_zero = tl.full((ROWS, COLUMNS), -(2**31), tl.int32).to(tl.float32, bitcast=True)
        following = token
        while following == token:
            places = place + tl.arange(0, ROWS)
            same = tl.load(sorted_ptr + places, mask=places < M, other=-1) == token
            positions = tl.load(positions_ptr + places, mask=same, other=0)
            inside = same[:, None] & exists
            dy = tl.load(dy_ptr + (positions[:, None] * H + columns[None, :]), mask=inside, other=0.0).to(tl.float32)
            terms = tl.where(inside, dy, minus_zero)
            # A dot with ones in full float32 is a chain of fma(1, term, accumulator): exact additions in order.
            accumulator = tl.dot(ones, terms, accumulator, input_precision="ieee", out_dtype=tl.float32)
            place += ROWS
            following = tl.load(sorted_ptr + place, mask=place < M, other=-1)
        tl.store(sums, accumulator.to(sums_ptr.dtype.element_ty), mask=exists)


def forward(ids_M: Tensor, weight_VH: Tensor, *, launch: RowLaunch | None = None) -> Tensor:
    """Row ids[m] of the table, for every m."""
    launch = launch or forced_launch(RowLaunch) or COPY_LAUNCH
    m, width = ids_M.shape[0], weight_VH.shape[1]
    y = weight_VH.new_empty(m, width)
    aligned = width % 8 == 0 and weight_VH.data_ptr() % 16 == 0 and y.data_ptr() % 16 == 0
    with on_device(weight_VH):
        run(
            embedding_forward,
            cdiv(m, launch.rows) * cdiv(width, launch.columns),
            (ids_M, weight_VH, y, m, width),
            warps=launch.warps,
            stages=launch.stages,
            ROWS=launch.rows,
            COLUMNS=launch.columns,
            ALIGNED=aligned,
        )
    return y


def backward(dy_MH: Tensor, ids_M: Tensor, vocabulary: int, padding: int, *, launch: RowLaunch | None = None) -> Tensor:
    """The gradient of the table in dy's dtype."""
    dweight_VH = dy_MH.new_zeros(vocabulary, dy_MH.shape[1])
    _add(dy_MH, ids_M, dweight_VH, padding, False, launch)
    return dweight_VH


def accumulate(
    dy_MH: Tensor, ids_M: Tensor, accumulator_VH: Tensor, padding: int, *, launch: RowLaunch | None = None
) -> None:
    """The chains over positions, resumed from the accumulator, in place; row `padding` gets nothing."""
    _add(dy_MH, ids_M, accumulator_VH, padding, True, launch)


def _add(dy_MH: Tensor, ids_M: Tensor, sums_VH: Tensor, padding: int, resume: bool, launch: RowLaunch | None) -> None:
    launch = launch or forced_launch(RowLaunch) or GRADIENT_LAUNCH
    m, width = dy_MH.shape
    with on_device(dy_MH):
        ordered_M, positions_M = torch.sort(ids_M, stable=True)
        run(
            embedding_backward,
            m * cdiv(width, launch.columns),
            (dy_MH, ordered_M, positions_M, sums_VH, m, width, padding),
            warps=launch.warps,
            stages=launch.stages,
            RESUME=resume,
            ROWS=launch.rows,
            COLUMNS=launch.columns,
        )
