"""Softmax of long rows, by one program a row or in three launches: maxima, sums of lanes, results.

Knows no launch. Who does which part decides no bit: maxima are exact in any order, and a lane is one program's."""

from __future__ import annotations

import triton
import triton.language as tl

from long_rows.exponential import exp_up_to_zero
from samebits.numerics.elementary.triton_generated import log
from samebits.ops._triton.rows import fold_by_halves, pointers_at


@triton.jit
def loaded(x_ptr, row, columns, H, ALIGNED: tl.constexpr):
    """Part of a row in float32, in two dimensions as `columns` are; what is behind its end is -inf."""
    # A multiple of 8 in a form that the compiler can see.
    length = H // 8 * 8 if ALIGNED else H
    x = tl.load(pointers_at(x_ptr, row * length + columns, ALIGNED), mask=columns < length, other=float("-inf"))
    return x.to(tl.float32)


@triton.jit
def largest(x_ptr, row, start, end, H, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    """The maximum of columns from start to end, which is a multiple of BLOCK or the row's end; NaN does not count."""
    best = tl.full((1, BLOCK), float("-inf"), tl.float32)
    for first in range(start, end, BLOCK):
        best = tl.maximum(best, loaded(x_ptr, row, first + tl.arange(0, BLOCK)[None, :], H, ALIGNED))
    return tl.max(tl.max(best, axis=1), axis=0)


@triton.jit
def shift_of(maximum):
    """What is subtracted from a row. Without a finite maximum nothing is; nor is the sign of a zero."""
    return tl.where((maximum == float("-inf")) | (maximum == 0.0), 0.0, maximum)


@triton.jit
def summed(x_ptr, row, shift, lane, H, STEPS: tl.constexpr, LANES: tl.constexpr, ALIGNED: tl.constexpr):
    """The sums of LANES lanes from `lane` on, one row of them: lane l adds columns l, l + 256, l + 512, ..."""
    lanes = tl.zeros((1, LANES), tl.float32)
    ones = tl.full((1, STEPS), 1.0, tl.float32)
    within = tl.arange(0, STEPS)[:, None] * 256 + (lane + tl.arange(0, LANES))[None, :]
    for start in range(0, H, 256 * STEPS):
        # Behind the row's end +0 is added, and a lane is never -0: the step changes nothing.
        terms = exp_up_to_zero(loaded(x_ptr, row, start + within, H, ALIGNED) - shift)
        # A product with ones in full float32 is a chain of fma(1, term, lane): exact additions in order.
        lanes = tl.dot(ones, terms, lanes, input_precision="ieee", out_dtype=tl.float32)
    return lanes


@triton.jit
def last_of(lanes, LOGARITHM: tl.constexpr):
    """What a row's numbers are multiplied by, or less by its logarithm."""
    total = fold_by_halves(lanes, 1)
    if LOGARITHM:
        return tl.where(total == 0.0, 0.0, log(total))
    return tl.where(total == 0.0, 0.0, tl.div_rn(tl.full((1,), 1.0, tl.float32), total))


@triton.jit
def store_results(
    x_ptr, y_ptr, row, start, end, shift, last, H, LOGARITHM: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr
):
    """Columns from start to end, which is a multiple of BLOCK or the row's end."""
    length = H // 8 * 8 if ALIGNED else H
    for first in range(start, end, BLOCK):
        columns = first + tl.arange(0, BLOCK)[None, :]
        x = loaded(x_ptr, row, columns, H, ALIGNED)
        y = (x - shift) - last if LOGARITHM else exp_up_to_zero(x - shift) * last
        pointers = pointers_at(y_ptr, row * length + columns, ALIGNED)
        tl.store(pointers, y.to(y_ptr.dtype.element_ty), mask=columns < length)


@triton.jit(do_not_specialize=["H"], do_not_specialize_on_alignment=["x_ptr", "y_ptr"])
def whole_rows(
    x_ptr, y_ptr, H: tl.int32, LOGARITHM: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr
):
    """One program a row."""
    row = tl.program_id(0).to(tl.int64)
    shift = shift_of(largest(x_ptr, row, 0, H, H, BLOCK, ALIGNED))
    last = last_of(summed(x_ptr, row, shift, 0, H, STEPS, 256, ALIGNED), LOGARITHM)
    store_results(x_ptr, y_ptr, row, 0, H, shift, last, H, LOGARITHM, BLOCK, ALIGNED)


@triton.jit(do_not_specialize=["H", "width"], do_not_specialize_on_alignment=["x_ptr", "maxima_ptr"])
def row_maxima(
    x_ptr, maxima_ptr, H: tl.int32, width: tl.int32, PARTS: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr
):
    """maxima[row, part]: of `width` columns."""
    row, part = (tl.program_id(0) // PARTS).to(tl.int64), tl.program_id(0) % PARTS
    end = tl.minimum((part + 1) * width, H)
    tl.store(maxima_ptr + tl.program_id(0), largest(x_ptr, row, part * width, end, H, BLOCK, ALIGNED))


@triton.jit(do_not_specialize=["H"], do_not_specialize_on_alignment=["x_ptr", "maxima_ptr", "lanes_ptr"])
def row_lanes(
    x_ptr,
    maxima_ptr,
    lanes_ptr,
    H: tl.int32,
    PARTS: tl.constexpr,
    STEPS: tl.constexpr,
    LANES: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """lanes[row, 256]: a program adds LANES of them."""
    row = (tl.program_id(0) // (256 // LANES)).to(tl.int64)
    lane = tl.program_id(0) % (256 // LANES) * LANES
    shift = shift_of(tl.max(tl.load(maxima_ptr + row * PARTS + tl.arange(0, PARTS)), axis=0))
    lanes = summed(x_ptr, row, shift, lane, H, STEPS, LANES, ALIGNED)
    tl.store(lanes_ptr + row * 256 + lane + tl.arange(0, LANES)[None, :], lanes)


@triton.jit(
    do_not_specialize=["H", "width"], do_not_specialize_on_alignment=["x_ptr", "y_ptr", "maxima_ptr", "lanes_ptr"]
)
def row_results(
    x_ptr,
    y_ptr,
    maxima_ptr,
    lanes_ptr,
    H: tl.int32,
    width: tl.int32,
    LOGARITHM: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """y of `width` columns."""
    row, part = (tl.program_id(0) // PARTS).to(tl.int64), tl.program_id(0) % PARTS
    shift = shift_of(tl.max(tl.load(maxima_ptr + row * PARTS + tl.arange(0, PARTS)), axis=0))
    last = last_of(tl.load(lanes_ptr + row * 256 + tl.arange(0, 256)[None, :]), LOGARITHM)
    end = tl.minimum((part + 1) * width, H)
    store_results(x_ptr, y_ptr, row, part * width, end, shift, last, H, LOGARITHM, BLOCK, ALIGNED)
