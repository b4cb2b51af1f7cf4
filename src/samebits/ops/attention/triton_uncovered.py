"""Rows that no sequence covers, by Triton: they hold what nothing was computed for, 0 or +inf.

Kernels that write all other rows then need no memory that was filled before."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from samebits.ops._triton.launch import run
from samebits.ops._triton.sizes import cdiv

COVERED_ROWS = 64
"""Of a program."""


@triton.jit
def fill(ptr, rows, uncovered, width, value):
    """One value into the rows that are uncovered."""
    for first in range(0, width, 256):
        columns = first + tl.arange(0, 256)
        pointers = ptr + rows.to(tl.int64)[:, None] * width + columns[None, :]
        filling = tl.full((rows.shape[0], 256), value, ptr.dtype.element_ty)
        tl.store(pointers, filling, mask=uncovered[:, None] & (columns < width)[None, :])


@triton.jit(
    do_not_specialize=["tokens", "count", "width", "second_width"],
    do_not_specialize_on_alignment=["ptr", "second_ptr", "start_ptr", "length_ptr"],
)
def attention_uncovered(
    ptr,
    second_ptr,
    start_ptr,
    length_ptr,
    tokens: tl.int32,
    count: tl.int32,
    width: tl.int32,
    second_width: tl.int32,
    SECOND: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Zeros into the rows of one tensor, SECOND into those of another, where no sequence of the table has them."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    covered = tl.zeros((ROWS,), tl.int32)
    for first in range(0, count, 16):
        sequences = first + tl.arange(0, 16)
        starts = tl.load(start_ptr + sequences, mask=sequences < count, other=0)
        ends = starts + tl.load(length_ptr + sequences, mask=sequences < count, other=0)
        has = (rows[:, None] >= starts[None, :]) & (rows[:, None] < ends[None, :])
        covered = tl.maximum(covered, tl.max(has.to(tl.int32), 1))
    uncovered = (covered == 0) & (rows < tokens)
    if tl.max(uncovered.to(tl.int32), 0) > 0:
        fill(ptr, rows, uncovered, width, 0.0)
        fill(second_ptr, rows, uncovered, second_width, SECOND)


def fill_uncovered(first: Tensor, second: Tensor, start: Tensor, length: Tensor, value: float) -> None:
    """Zeros into the rows of no sequence, and `value` into those of the second tensor."""
    tokens = first.shape[0]
    widths = (first[0].numel(), second[0].numel()) if tokens else (0, 0)
    run(
        attention_uncovered,
        cdiv(tokens, COVERED_ROWS),
        (first, second, start, length, tokens, start.shape[0], *widths),
        warps=4,
        stages=1,
        SECOND=value,
        ROWS=COVERED_ROWS,
    )
