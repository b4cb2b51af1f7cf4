"""LayerNorm by Triton: a row's two sums, one after the other, run in 256 lanes that are folded by halves.

Knows nothing of autograd, validation or empty tensors; the public function does. Rows, columns and warps of a program
decide speed alone: no sum is left to a reduction whose order the compiler would choose."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from samebits.numerics.elementary.triton_generated import rsqrt
from samebits.ops._triton.columns import add_rows
from samebits.ops._triton.device import on_device
from samebits.ops._triton.launch import run
from samebits.ops._triton.rows import RowLaunch, aligned, fold_by_halves
from samebits.ops._triton.sizes import cdiv
from samebits.ops.layernorm.triton_blocks import (
    add_blocks,
    add_products,
    add_squares,
    gradients_of,
    load_blocks,
    load_terms,
    results_of,
)
from samebits.ops.rmsnorm.triton_kept import launch_for, steps_of, store_blocks

# M rows, H the normalised axis. A row is kept in registers, or read once more for every pass, STEPS blocks at a time.


@triton.jit
def row_mean(lanes, count, ROWS: tl.constexpr):
    """The lanes' sum divided by the width, rounded once; `/` would be the approximate division."""
    return tl.div_rn(fold_by_halves(lanes, ROWS), tl.zeros((ROWS,), tl.float32) + count)[:, None]


@triton.jit(
    do_not_specialize=["M", "H", "count", "eps"],
    do_not_specialize_on_alignment=["x_ptr", "weight_ptr", "bias_ptr", "y_ptr", "mean_ptr", "rstd_ptr"],
)
def layernorm_forward(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    mean_ptr,
    rstd_ptr,
    M: tl.int32,
    H: tl.int32,
    count: tl.float32,
    eps: tl.float32,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
    ALIGNED: tl.constexpr,
    KEPT: tl.constexpr,
):
    """mean = sum(x) / H; rstd = rsqrt(sum((x - mean)^2) / H + eps); y = round(fma((x - mean) * rstd, weight, bias))."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    FULL: tl.constexpr = STEPS - 1 if KEPT else 0
    lanes = tl.zeros((ROWS, 256), dtype=tl.float32)
    if KEPT:
        kept = load_blocks(x_ptr, rows, 0, M, H, STEPS, FULL, ALIGNED)
        lanes = add_blocks(lanes, kept, STEPS)
    else:
        for start in range(0, H, 256 * STEPS):
            lanes = add_blocks(lanes, load_blocks(x_ptr, rows, start, M, H, STEPS, FULL, ALIGNED), STEPS)
    mean = row_mean(lanes, count, ROWS)
    lanes = tl.zeros((ROWS, 256), dtype=tl.float32)
    if KEPT:
        lanes = add_squares(lanes, kept, mean, rows, 0, M, H, STEPS, FULL, ALIGNED)
    else:
        for start in range(0, H, 256 * STEPS):
            blocks = load_blocks(x_ptr, rows, start, M, H, STEPS, FULL, ALIGNED)
            lanes = add_squares(lanes, blocks, mean, rows, start, M, H, STEPS, FULL, ALIGNED)
    rstd = rsqrt(row_mean(lanes, count, ROWS) + eps)
    if KEPT:
        y = results_of(weight_ptr, bias_ptr, kept, mean, rstd, rows, 0, M, H, ROWS, STEPS, FULL, ALIGNED)
        store_blocks(y_ptr, y, rows, 0, M, H, STEPS, FULL, ALIGNED)
    else:
        for start in range(0, H, 256 * STEPS):
            blocks = load_blocks(x_ptr, rows, start, M, H, STEPS, FULL, ALIGNED)
            y = results_of(weight_ptr, bias_ptr, blocks, mean, rstd, rows, start, M, H, ROWS, STEPS, FULL, ALIGNED)
            store_blocks(y_ptr, y, rows, start, M, H, STEPS, FULL, ALIGNED)
    tl.store(mean_ptr + rows[:, None], mean, mask=(rows < M)[:, None])
    tl.store(rstd_ptr + rows[:, None], rstd, mask=(rows < M)[:, None])


@triton.jit(
    do_not_specialize=["M", "H", "count"],
    do_not_specialize_on_alignment=["dy_ptr", "x_ptr", "weight_ptr", "mean_ptr", "rstd_ptr", "dx_ptr"],
)
def layernorm_backward_input(
    dy_ptr,
    x_ptr,
    weight_ptr,
    mean_ptr,
    rstd_ptr,
    dx_ptr,
    M: tl.int32,
    H: tl.int32,
    count: tl.float32,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
    ALIGNED: tl.constexpr,
    KEPT: tl.constexpr,
):
    """c = sum(g) / H; s = sum(g * xhat) / H; dx = round(rstd * fma(xhat, -s, g - c)), xhat = (x - mean) * rstd."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    FULL: tl.constexpr = STEPS - 1 if KEPT else 0
    mean = tl.load(mean_ptr + rows, mask=rows < M, other=0.0)[:, None]
    rstd = tl.load(rstd_ptr + rows, mask=rows < M, other=0.0)[:, None]
    lanes = tl.zeros((ROWS, 256), dtype=tl.float32)
    products = tl.zeros((ROWS, 256), dtype=tl.float32)
    if KEPT:
        gs, xhats = load_terms(dy_ptr, x_ptr, weight_ptr, mean, rstd, rows, 0, M, H, ROWS, STEPS, FULL, ALIGNED)
        lanes = add_blocks(lanes, gs, STEPS)
        products = add_products(products, gs, xhats, rows, 0, M, H, STEPS, FULL, ALIGNED)
    else:
        for start in range(0, H, 256 * STEPS):
            g, xhat = load_terms(dy_ptr, x_ptr, weight_ptr, mean, rstd, rows, start, M, H, ROWS, STEPS, FULL, ALIGNED)
            lanes = add_blocks(lanes, g, STEPS)
            products = add_products(products, g, xhat, rows, start, M, H, STEPS, FULL, ALIGNED)
    centre = row_mean(lanes, count, ROWS)
    # Times -1, for Triton's own minus is a subtraction from +0, which makes +0 of +0.
    minus_slope = row_mean(products, count, ROWS) * -1.0
    if KEPT:
        dx = gradients_of(gs, xhats, centre, minus_slope, rstd, ROWS, STEPS)
        store_blocks(dx_ptr, dx, rows, 0, M, H, STEPS, FULL, ALIGNED)
    else:
        for start in range(0, H, 256 * STEPS):
            g, xhat = load_terms(dy_ptr, x_ptr, weight_ptr, mean, rstd, rows, start, M, H, ROWS, STEPS, FULL, ALIGNED)
            dx = gradients_of(g, xhat, centre, minus_slope, rstd, ROWS, STEPS)
            store_blocks(dx_ptr, dx, rows, start, M, H, STEPS, FULL, ALIGNED)


def forward(
    x_MH: Tensor, weight_H: Tensor | None, bias_H: Tensor | None, eps: float, *, launch: RowLaunch | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, mean, rstd)."""
    (m, width), y = x_MH.shape, torch.empty_like(x_MH)
    launch = launch or launch_for(width, m)
    steps, kept = steps_of(launch, width)
    mean, rstd = (torch.empty(m, dtype=torch.float32, device=x_MH.device) for _ in range(2))
    with on_device(x_MH):
        run(
            layernorm_forward,
            cdiv(m, launch.rows),
            (x_MH, weight_H, bias_H, y, mean, rstd, m, width, float(width), eps),
            warps=launch.warps,
            stages=launch.stages,
            ROWS=launch.rows,
            STEPS=steps,
            ALIGNED=aligned(x_MH, weight_H, bias_H, y),
            KEPT=kept,
        )
    return y, mean, rstd


def backward_input(
    dy_MH: Tensor,
    x_MH: Tensor,
    weight_H: Tensor | None,
    mean_M: Tensor,
    rstd_M: Tensor,
    *,
    launch: RowLaunch | None = None,
) -> Tensor:
    """The gradient of x."""
    (m, width), dx = dy_MH.shape, torch.empty_like(dy_MH)
    launch = launch or launch_for(width, m)
    steps, kept = steps_of(launch, width)
    with on_device(dy_MH):
        run(
            layernorm_backward_input,
            cdiv(m, launch.rows),
            (dy_MH, x_MH, weight_H, mean_M, rstd_M, dx, m, width, float(width)),
            warps=launch.warps,
            stages=launch.stages,
            ROWS=launch.rows,
            STEPS=steps,
            ALIGNED=aligned(dy_MH, x_MH, weight_H, dx),
            KEPT=kept,
        )
    return dx


def backward_weight(
    dy_MH: Tensor,
    x_MH: Tensor,
    mean_M: Tensor,
    rstd_M: Tensor,
    accumulator_H: Tensor,
    *,
    launch: RowLaunch | None = None,
) -> None:
    """The chain over rows of dy * xhat, resumed from the accumulator (float32, contiguous), in place."""
    add_rows(dy_MH, x_MH, mean_M, rstd_M, accumulator_H, launch)


def backward_bias(dy_MH: Tensor, accumulator_H: Tensor, *, launch: RowLaunch | None = None) -> None:
    """The chain over rows of dy, resumed from the accumulator (float32, contiguous), in place."""
    add_rows(dy_MH, None, None, None, accumulator_H, launch)
