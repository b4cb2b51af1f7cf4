"""LayerNorm by Triton: a row's two sums, one after the other, run in 256 lanes that are folded by halves.

Knows nothing of autograd, validation or empty tensors; the public function does. Rows, columns and warps of a program
decide speed alone: no sum is left to a reduction whose order the compiler would choose."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from samebits.numerics.elementary.triton_generated import rsqrt
from samebits.ops._triton.columns import add_rows
from samebits.ops._triton.device import on_device
from samebits.ops._triton.forced import forced_launch
from samebits.ops._triton.launch import run
from samebits.ops._triton.rows import RowLaunch, aligned, block_of, fold_by_halves, load_columns, load_rows, pointers_at
from samebits.ops._triton.sizes import cdiv

# M rows, H the normalised axis. Lane l adds the terms l, l + 256, l + 512, ...: 256 decides bits, part of the order.

ROW_LAUNCH: Final = RowLaunch(rows=1, warps=4)


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
    ALIGNED: tl.constexpr,
):
    """mean = sum(x) / H; rstd = rsqrt(sum((x - mean)^2) / H + eps); y = round(fma((x - mean) * rstd, weight, bias))."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lanes = tl.zeros((ROWS, 256), dtype=tl.float32)
    for start in range(0, H, 256):
        offsets, inside, _ = block_of(rows, start, M, H, 256, ALIGNED)
        # Outside x is +0, and a lane that starts at +0 is never -0: the step changes nothing.
        lanes = lanes + load_rows(x_ptr, offsets, inside, ALIGNED)
    mean = row_mean(lanes, count, ROWS)
    lanes = tl.zeros((ROWS, 256), dtype=tl.float32)
    for start in range(0, H, 256):
        offsets, inside, _ = block_of(rows, start, M, H, 256, ALIGNED)
        left = load_rows(x_ptr, offsets, inside, ALIGNED) - mean
        lanes = tl.where(inside, tl.fma(left, left, lanes), lanes)
    rstd = rsqrt(row_mean(lanes, count, ROWS) + eps)
    tl.store(mean_ptr + rows[:, None], mean, mask=(rows < M)[:, None])
    tl.store(rstd_ptr + rows[:, None], rstd, mask=(rows < M)[:, None])
    for start in range(0, H, 256):
        offsets, inside, columns = block_of(rows, start, M, H, 256, ALIGNED)
        y = (load_rows(x_ptr, offsets, inside, ALIGNED) - mean) * rstd
        if weight_ptr is not None:
            weight = tl.broadcast_to(load_columns(weight_ptr, columns, H, ALIGNED), (ROWS, 256))
            if bias_ptr is not None:
                bias = tl.broadcast_to(load_columns(bias_ptr, columns, H, ALIGNED), (ROWS, 256))
                y = tl.fma(y, weight, bias)
            else:
                y = y * weight
        else:
            if bias_ptr is not None:
                y = y + load_columns(bias_ptr, columns, H, ALIGNED)
        tl.store(pointers_at(y_ptr, offsets, ALIGNED), y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def load_gradient(dy_ptr, weight_ptr, offsets, inside, columns, H, ALIGNED: tl.constexpr):
    """g = dy * weight."""
    g = load_rows(dy_ptr, offsets, inside, ALIGNED)
    if weight_ptr is not None:
        g = g * load_columns(weight_ptr, columns, H, ALIGNED)
    return g


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
    ALIGNED: tl.constexpr,
):
    """c = sum(g) / H; s = sum(g * xhat) / H; dx = round(rstd * fma(xhat, -s, g - c)), xhat = (x - mean) * rstd."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mean = tl.load(mean_ptr + rows, mask=rows < M, other=0.0)[:, None]
    rstd = tl.load(rstd_ptr + rows, mask=rows < M, other=0.0)[:, None]
    lanes = tl.zeros((ROWS, 256), dtype=tl.float32)
    products = tl.zeros((ROWS, 256), dtype=tl.float32)
    for start in range(0, H, 256):
        offsets, inside, columns = block_of(rows, start, M, H, 256, ALIGNED)
        g = load_gradient(dy_ptr, weight_ptr, offsets, inside, columns, H, ALIGNED)
        xhat = (load_rows(x_ptr, offsets, inside, ALIGNED) - mean) * rstd
        # A missing term is skipped, so that a lane of -0 stays one.
        lanes = tl.where(inside, lanes + g, lanes)
        products = tl.where(inside, tl.fma(g, xhat, products), products)
    centre = row_mean(lanes, count, ROWS)
    # Times -1, for Triton's own minus is a subtraction from +0, which makes +0 of +0.
    minus_slope = row_mean(products, count, ROWS) * -1.0
    for start in range(0, H, 256):
        offsets, inside, columns = block_of(rows, start, M, H, 256, ALIGNED)
        g = load_gradient(dy_ptr, weight_ptr, offsets, inside, columns, H, ALIGNED)
        xhat = (load_rows(x_ptr, offsets, inside, ALIGNED) - mean) * rstd
        dx = rstd * tl.fma(xhat, tl.broadcast_to(minus_slope, (ROWS, 256)), g - centre)
        tl.store(pointers_at(dx_ptr, offsets, ALIGNED), dx.to(dx_ptr.dtype.element_ty), mask=inside)


def forward(
    x_MH: Tensor, weight_H: Tensor | None, bias_H: Tensor | None, eps: float, *, launch: RowLaunch | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, mean, rstd)."""
    launch = launch or forced_launch(RowLaunch) or ROW_LAUNCH
    (m, width), y = x_MH.shape, torch.empty_like(x_MH)
    mean, rstd = (torch.empty(m, dtype=torch.float32, device=x_MH.device) for _ in range(2))
    with on_device(x_MH):
        run(
            layernorm_forward,
            cdiv(m, launch.rows),
            (x_MH, weight_H, bias_H, y, mean, rstd, m, width, float(width), eps),
            warps=launch.warps,
            stages=launch.stages,
            ROWS=launch.rows,
            ALIGNED=aligned(x_MH, weight_H, bias_H, y),
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
    launch = launch or forced_launch(RowLaunch) or ROW_LAUNCH
    (m, width), dx = dy_MH.shape, torch.empty_like(dy_MH)
    with on_device(dy_MH):
        run(
            layernorm_backward_input,
            cdiv(m, launch.rows),
            (dy_MH, x_MH, weight_H, mean_M, rstd_M, dx, m, width, float(width)),
            warps=launch.warps,
            stages=launch.stages,
            ROWS=launch.rows,
            ALIGNED=aligned(dy_MH, x_MH, weight_H, dx),
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
