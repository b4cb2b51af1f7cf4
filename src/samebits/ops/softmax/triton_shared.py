"""Softmax of rows that several programs share, in three launches: maxima, sums of lanes, results.

Knows no launch. Who does which part decides no bit: maxima are exact in any order, and a lane is one program's. A
block of steps is read as wide as can be, and the lanes' chains over them are a product with ones, which is a chain of
exact additions in their order."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.ops._triton.exponential import exp_up_to_zero
from samebits.ops._triton.rows import fold_by_halves, pointers_at
from samebits.ops.softmax.triton_forward import last_of, result_of, shift_of


@triton.jit
def row_pointers(ptr, row, columns, H, ALIGNED: tl.constexpr):
    """Addresses of columns of a row."""
    # A multiple of 8 in a form that the compiler can see.
    length = H // 8 * 8 if ALIGNED else H
    return pointers_at(ptr, row.to(tl.int64) * length + columns, ALIGNED)


@triton.jit
def inside_of(columns, H, ALIGNED: tl.constexpr):
    """Which of the columns there are."""
    length = H // 8 * 8 if ALIGNED else H
    return columns < length


@triton.jit
def columns_of(lane, STEPS: tl.constexpr, LANES: tl.constexpr):
    """The first columns of lanes from `lane` on, a step a row."""
    return tl.arange(0, STEPS)[:, None] * 256 + (lane + tl.arange(0, LANES))[None, :]


@triton.jit
def row_maximum(maxima_ptr, row, PARTS: tl.constexpr):
    """Of the parts' maxima."""
    return tl.max(tl.load(maxima_ptr + row * PARTS + tl.arange(0, PARTS)), axis=0)


@triton.jit(do_not_specialize=["H", "blocks"], do_not_specialize_on_alignment=["x_ptr", "maxima_ptr"])
def softmax_maxima(
    x_ptr, maxima_ptr, H: tl.int32, blocks: tl.int32, PARTS: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr
):
    """maxima[row, part]: of so many blocks of columns; NaN does not count."""
    row, part = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS
    best = tl.full((1, BLOCK), float("-inf"), tl.float32)
    # A counter of blocks, so that the compiler sees where they begin, and loads as wide as can be.
    for block in range(part * blocks, tl.minimum(part * blocks + blocks, tl.cdiv(H, BLOCK))):
        columns = block * BLOCK + tl.arange(0, BLOCK)[None, :]
        inside = inside_of(columns, H, ALIGNED)
        x = tl.load(row_pointers(x_ptr, row, columns, H, ALIGNED), mask=inside, other=float("-inf"))
        best = tl.maximum(best, x.to(tl.float32))
    tl.store(maxima_ptr + tl.program_id(0), tl.max(tl.max(best, axis=1), axis=0))


@triton.jit(do_not_specialize=["M", "H"], do_not_specialize_on_alignment=["x_ptr", "maxima_ptr", "lanes_ptr"])
def softmax_lanes(
    x_ptr,
    maxima_ptr,
    lanes_ptr,
    M: tl.int32,
    H: tl.int32,
    PARTS: tl.constexpr,
    STEPS: tl.constexpr,
    LANES: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """lanes[row, 256]: lane l adds columns l, l + 256, l + 512, ...; a program adds LANES of them."""
    # From the last row to the first: the cache may still have what the maxima's launch has read last.
    row = M - 1 - tl.program_id(0) // (256 // LANES)
    lane = tl.program_id(0) % (256 // LANES) * LANES
    shift = shift_of(row_maximum(maxima_ptr, row, PARTS))
    lanes = tl.zeros((1, LANES), tl.float32)
    ones = tl.full((1, STEPS), 1.0, tl.float32)
    within = columns_of(lane, STEPS, LANES)
    whole = H // (256 * STEPS) * (256 * STEPS)
    for start in range(0, whole, 256 * STEPS):
        x = tl.load(row_pointers(x_ptr, row, start + within, H, ALIGNED))
        # A product with ones in full float32 is a chain of fma(1, term, lane): exact additions in order.
        terms = exp_up_to_zero(x.to(tl.float32) - shift)
        lanes = tl.dot(ones, terms, lanes, input_precision="ieee", out_dtype=tl.float32)
    for start in range(whole, H, 256 * STEPS):
        inside = inside_of(start + within, H, ALIGNED)
        x = tl.load(row_pointers(x_ptr, row, start + within, H, ALIGNED), mask=inside, other=float("-inf"))
        # Behind the row's end +0 is added, and a lane is never -0: the step changes nothing.
        terms = tl.where(inside, exp_up_to_zero(x.to(tl.float32) - shift), 0.0)
        lanes = tl.dot(ones, terms, lanes, input_precision="ieee", out_dtype=tl.float32)
    tl.store(lanes_ptr + row.to(tl.int64) * 256 + lane + tl.arange(0, LANES)[None, :], lanes)


@triton.jit(
    do_not_specialize=["H", "blocks"], do_not_specialize_on_alignment=["x_ptr", "y_ptr", "maxima_ptr", "lanes_ptr"]
)
def softmax_results(
    x_ptr,
    y_ptr,
    maxima_ptr,
    lanes_ptr,
    H: tl.int32,
    blocks: tl.int32,
    LOGARITHM: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """y of so many blocks of columns."""
    row, part = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS
    shift = shift_of(row_maximum(maxima_ptr, row, PARTS))
    total = fold_by_halves(tl.load(lanes_ptr + row.to(tl.int64) * 256 + tl.arange(0, 256)[None, :]), 1)
    last = last_of(total, LOGARITHM)
    for block in range(part * blocks, tl.minimum(part * blocks + blocks, tl.cdiv(H, BLOCK))):
        columns = block * BLOCK + tl.arange(0, BLOCK)[None, :]
        inside = inside_of(columns, H, ALIGNED)
        x = tl.load(row_pointers(x_ptr, row, columns, H, ALIGNED), mask=inside, other=0.0)
        y = result_of(x, shift, last, LOGARITHM).to(y_ptr.dtype.element_ty)
        tl.store(row_pointers(y_ptr, row, columns, H, ALIGNED), y, mask=inside)
