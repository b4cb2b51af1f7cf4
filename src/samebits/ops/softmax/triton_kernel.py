"""Softmax by Triton: a row's exponentials are added in 256 lanes that are folded by halves.

Knows nothing of autograd, validation or empty tensors; the public function does. Rows, columns and warps of a program
decide speed alone: maxima are exact in any order, and no sum is left to a reduction whose order the compiler would
choose."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from samebits.numerics.elementary.triton_generated import exp, log
from samebits.ops._triton.device import on_device
from samebits.ops._triton.forced import forced_launch
from samebits.ops._triton.launch import run
from samebits.ops._triton.rows import RowLaunch, aligned, block_of, fold_by_halves, pointers_at
from samebits.ops._triton.sizes import cdiv

# M rows, H the axis that is normalised.

# Decides bits: lane l adds the terms l, l + 256, l + 512, ... Part of the order.
LANES: Final = 256

# Speed only: the longest row a launch is for, and the launch; columns are those whose loads are under way together.
LAUNCHES: Final = (
    (1024, RowLaunch(rows=1, columns=256, warps=4)),
    (8192, RowLaunch(rows=1, columns=1024, warps=4)),
    (2**31, RowLaunch(rows=1, columns=2048, warps=8)),
)


@triton.jit
def row_shift(x_ptr, rows, M, H, ROWS: tl.constexpr, STEPS: tl.constexpr, ALIGNED: tl.constexpr):
    """What is subtracted from a row: its maximum. Without a finite one nothing is; nor is the sign of a zero."""
    best = tl.full((ROWS, 256 * STEPS), float("-inf"), tl.float32)
    for start in range(0, H, 256 * STEPS):
        offsets, inside, _ = block_of(rows, start, M, H, 256 * STEPS, ALIGNED)
        x = tl.load(pointers_at(x_ptr, offsets, ALIGNED), mask=inside, other=float("-inf"))
        best = tl.maximum(best, x.to(tl.float32))
    maximum = tl.max(best, axis=1)
    return tl.where((maximum == float("-inf")) | (maximum == 0.0), 0.0, maximum)[:, None]


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
    lanes = tl.zeros((ROWS, 256), dtype=tl.float32)
    for start in range(0, H, 256 * STEPS):
        for step in tl.static_range(STEPS):
            offsets, inside, _ = block_of(rows, start + step * 256, M, H, 256, ALIGNED)
            x = tl.load(pointers_at(x_ptr, offsets, ALIGNED), mask=inside, other=float("-inf"))
            # Outside x is -inf, its exponential +0, and a lane is never -0: the step changes nothing.
            lanes = lanes + exp(x.to(tl.float32) - shift)
    total = fold_by_halves(lanes, ROWS)
    if LOGARITHM:
        last = tl.where(total == 0.0, 0.0, log(total))[:, None]
    else:
        last = tl.where(total == 0.0, 0.0, tl.div_rn(tl.full((ROWS,), 1.0, tl.float32), total))[:, None]
    for start in range(0, H, 256 * STEPS):
        offsets, inside, _ = block_of(rows, start, M, H, 256 * STEPS, ALIGNED)
        x = tl.load(pointers_at(x_ptr, offsets, ALIGNED), mask=inside, other=0.0).to(tl.float32)
        y = (x - shift) - last if LOGARITHM else exp(x - shift) * last
        tl.store(pointers_at(y_ptr, offsets, ALIGNED), y.to(y_ptr.dtype.element_ty), mask=inside)


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
    lanes = tl.zeros((ROWS, 256), dtype=tl.float32)
    for start in range(0, H, 256 * STEPS):
        for step in tl.static_range(STEPS):
            offsets, inside, _ = block_of(rows, start + step * 256, M, H, 256, ALIGNED)
            dy = tl.load(pointers_at(dy_ptr, offsets, ALIGNED), mask=inside, other=0.0).to(tl.float32)
            if LOGARITHM:
                added = lanes + dy
            else:
                y = tl.load(pointers_at(y_ptr, offsets, ALIGNED), mask=inside, other=0.0).to(tl.float32)
                added = tl.fma(dy, y, lanes)
            # A missing term is skipped, so that a lane of -0 stays one.
            lanes = tl.where(inside, added, lanes)
    c = fold_by_halves(lanes, ROWS)[:, None]
    for start in range(0, H, 256 * STEPS):
        offsets, inside, _ = block_of(rows, start, M, H, 256 * STEPS, ALIGNED)
        dy = tl.load(pointers_at(dy_ptr, offsets, ALIGNED), mask=inside, other=0.0).to(tl.float32)
        y = tl.load(pointers_at(y_ptr, offsets, ALIGNED), mask=inside, other=0.0).to(tl.float32)
        # Times -1, for Triton's own minus is a subtraction from +0, which makes +0 of +0.
        dx = tl.fma(exp(y), tl.broadcast_to(c * -1.0, y.shape), dy) if LOGARITHM else y * (dy - c)
        tl.store(pointers_at(dx_ptr, offsets, ALIGNED), dx.to(dx_ptr.dtype.element_ty), mask=inside)


def chosen_launch(width: int) -> RowLaunch:
    """The forced launch, or the one for rows of this length."""
    return forced_launch(RowLaunch) or next(launch for longest, launch in LAUNCHES if width <= longest)


def forward(x_MH: Tensor, dtype: torch.dtype, logarithm: bool, *, launch: RowLaunch | None = None) -> Tensor:
    """Softmax of every row, or its logarithm, in `dtype`."""
    (m, width), x = x_MH.shape, x_MH.contiguous()
    launch, y = launch or chosen_launch(width), torch.empty_like(x, dtype=dtype)
    with on_device(x):
        run(
            softmax_forward,
            cdiv(m, launch.rows),
            (x, y, m, width),
            warps=launch.warps,
            stages=launch.stages,
            LOGARITHM=logarithm,
            ROWS=launch.rows,
            STEPS=max(1, launch.columns // LANES),
            ALIGNED=aligned(x, y),
        )
    return y


def backward(
    dy_MH: Tensor, y_MH: Tensor, dtype: torch.dtype, logarithm: bool, *, launch: RowLaunch | None = None
) -> Tensor:
    """The gradient of x in `dtype`, from the result as it was stored."""
    (m, width), dy, y = y_MH.shape, dy_MH.contiguous(), y_MH.contiguous()
    launch, dx = launch or chosen_launch(width), torch.empty_like(y, dtype=dtype)
    with on_device(dy):
        run(
            softmax_backward,
            cdiv(m, launch.rows),
            (dy, y, dx, m, width),
            warps=launch.warps,
            stages=launch.stages,
            LOGARITHM=logarithm,
            ROWS=launch.rows,
            STEPS=max(1, launch.columns // LANES),
            ALIGNED=aligned(dy, y, dx),
        )
    return dx
