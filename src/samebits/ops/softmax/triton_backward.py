"""Softmax's backward kernel by Triton: a row is one program's, and is read as triton_forward.py reads it.

Knows no launch."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.numerics.elementary.triton_generated import exp
from samebits.ops._triton.rows import block_of, fold_by_halves, load_rows, pointers_at


@triton.jit
def with_term(lanes, dy_ptr, y_ptr, offsets, inside, LOGARITHM: tl.constexpr, ALIGNED: tl.constexpr):
    """Lanes with one step more: dy, or dy * y with one rounding."""
    dy = load_rows(dy_ptr, offsets, inside, ALIGNED)
    return lanes + dy if LOGARITHM else tl.fma(dy, load_rows(y_ptr, offsets, inside, ALIGNED), lanes)


@triton.jit
def row_sum(
    dy_ptr, y_ptr, rows, M, H, LOGARITHM: tl.constexpr, ROWS: tl.constexpr, STEPS: tl.constexpr, ALIGNED: tl.constexpr
):
    """The sum of each row's dy, or dy * y: a lane is one thread's, which adds to it step by step."""
    here = tl.broadcast_to((rows < M)[:, None], (ROWS, 256))
    lanes = tl.zeros((ROWS, 256), dtype=tl.float32)
    whole = H // (256 * STEPS) * (256 * STEPS)
    for start in range(0, whole, 256 * STEPS):
        for step in tl.static_range(STEPS):
            offsets, _, _ = block_of(rows, start + step * 256, M, H, 256, ALIGNED)
            lanes = with_term(lanes, dy_ptr, y_ptr, offsets, here, LOGARITHM, ALIGNED)
    for start in range(whole, H, 256 * STEPS):
        for step in tl.static_range(STEPS):
            offsets, inside, _ = block_of(rows, start + step * 256, M, H, 256, ALIGNED)
            # A missing term is skipped, so that a lane of -0 stays one.
            lanes = tl.where(inside, with_term(lanes, dy_ptr, y_ptr, offsets, inside, LOGARITHM, ALIGNED), lanes)
    return fold_by_halves(lanes, ROWS)[:, None]


@triton.jit(do_not_specialize=["M", "H"], do_not_specialize_on_alignment=["dy_ptr", "y_ptr", "dx_ptr"])
def softmax_backward(
    dy_ptr,
    y_ptr,
    dx_ptr,
    M: tl.int32,
    H: tl.int32,
    LOGARITHM: tl.constexpr,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """dx = round(y * (dy - sum(dy * y))), or round(fma(-exp(y), sum(dy), dy))."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = row_sum(dy_ptr, y_ptr, rows, M, H, LOGARITHM, ROWS, STEPS, ALIGNED)
    # From the end, as in the forward kernel.
    end = (H - 1) // (256 * STEPS) * (256 * STEPS)
    for behind in range(0, H, 256 * STEPS):
        offsets, inside, _ = block_of(rows, end - behind, M, H, 256 * STEPS, ALIGNED)
        dy, y = load_rows(dy_ptr, offsets, inside, ALIGNED), load_rows(y_ptr, offsets, inside, ALIGNED)
        # Times -1, for Triton's own minus is a subtraction from +0, which makes +0 of +0.
        dx = tl.fma(exp(y), tl.broadcast_to(c * -1.0, y.shape), dy) if LOGARITHM else y * (dy - c)
        tl.store(pointers_at(dx_ptr, offsets, ALIGNED), dx.to(dx_ptr.dtype.element_ty), mask=inside)
