"""Softmax's forward kernel by Triton for rows of one program each, and what it shares with those of several.

Knows no launch. Maximum and results go from a row's end to its beginning, for the sum, which has an order, goes the
other way: each begins with what was read last, which the cache may still have."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.numerics.elementary.triton_generated import log
from samebits.ops._triton.exponential import exp_up_to_zero
from samebits.ops._triton.rows import block_of, fold_by_halves, pointers_at


@triton.jit
def shift_of(maximum):
    """What is subtracted from a row: its maximum. Without a finite one nothing is; nor is the sign of a zero."""
    return tl.where((maximum == float("-inf")) | (maximum == 0.0), 0.0, maximum)


@triton.jit
def last_of(total, LOGARITHM: tl.constexpr):
    """What a row's exponentials are multiplied by, or its differences less by, from their sum."""
    if LOGARITHM:
        last = tl.where(total == 0.0, 0.0, log(total))
    else:
        last = tl.where(total == 0.0, 0.0, tl.div_rn(tl.full(total.shape, 1.0, tl.float32), total))
    return last[:, None]


@triton.jit
def result_of(x, shift, last, LOGARITHM: tl.constexpr):
    """(x - max) - log(S), or exp(x - max) * (1 / S)."""
    less = x.to(tl.float32) - shift
    return less - last if LOGARITHM else exp_up_to_zero(less) * last


@triton.jit
def row_shift(x_ptr, rows, M, H, ROWS: tl.constexpr, STEPS: tl.constexpr, ALIGNED: tl.constexpr):
    """What is subtracted from each row; NaN does not count."""
    best = tl.full((ROWS, 256 * STEPS), float("-inf"), tl.float32)
    end = (H - 1) // (256 * STEPS) * (256 * STEPS)
    for behind in range(0, H, 256 * STEPS):
        offsets, inside, _ = block_of(rows, end - behind, M, H, 256 * STEPS, ALIGNED)
        x = tl.load(pointers_at(x_ptr, offsets, ALIGNED), mask=inside, other=float("-inf"))
        best = tl.maximum(best, x.to(tl.float32))
    return shift_of(tl.max(best, axis=1))[:, None]


@triton.jit
def row_sum(x_ptr, rows, shift, M, H, ROWS: tl.constexpr, STEPS: tl.constexpr, ALIGNED: tl.constexpr):
    """The sum of each row's exponentials: a lane is one thread's, which adds to it step by step.

    Blocks that lie within the row are read without asking for each column; what is left of it asks."""
    here = tl.broadcast_to((rows < M)[:, None], (ROWS, 256))
    lanes = tl.zeros((ROWS, 256), dtype=tl.float32)
    whole = H // (256 * STEPS) * (256 * STEPS)
    for start in range(0, whole, 256 * STEPS):
        for step in tl.static_range(STEPS):
            offsets, _, _ = block_of(rows, start + step * 256, M, H, 256, ALIGNED)
            x = tl.load(pointers_at(x_ptr, offsets, ALIGNED), mask=here, other=0.0)
            lanes = lanes + exp_up_to_zero(x.to(tl.float32) - shift)
    for start in range(whole, H, 256 * STEPS):
        for step in tl.static_range(STEPS):
            offsets, inside, _ = block_of(rows, start + step * 256, M, H, 256, ALIGNED)
            x = tl.load(pointers_at(x_ptr, offsets, ALIGNED), mask=inside, other=float("-inf"))
            lanes = tl.where(inside, lanes + exp_up_to_zero(x.to(tl.float32) - shift), lanes)
    return fold_by_halves(lanes, ROWS)


@triton.jit(do_not_specialize=["M", "H"], do_not_specialize_on_alignment=["x_ptr", "y_ptr"])
def softmax_forward(
    x_ptr,
    y_ptr,
    M: tl.int32,
    H: tl.int32,
    LOGARITHM: tl.constexpr,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """e = exp(x - max); S = sum(e); y = round(e * (1 / S)), or round((x - max) - log(S))."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    shift = row_shift(x_ptr, rows, M, H, ROWS, STEPS, ALIGNED)
    last = last_of(row_sum(x_ptr, rows, shift, M, H, ROWS, STEPS, ALIGNED), LOGARITHM)
    end = (H - 1) // (256 * STEPS) * (256 * STEPS)
    for behind in range(0, H, 256 * STEPS):
        offsets, inside, _ = block_of(rows, end - behind, M, H, 256 * STEPS, ALIGNED)
        x = tl.load(pointers_at(x_ptr, offsets, ALIGNED), mask=inside, other=0.0)
        y = result_of(x, shift, last, LOGARITHM)
        tl.store(pointers_at(y_ptr, offsets, ALIGNED), y.to(y_ptr.dtype.element_ty), mask=inside)
