"""RMSNorm by Triton: a row's sum runs in 256 lanes of fused multiply-adds that are folded by halves.

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
from samebits.ops._triton.rows import RowLaunch, aligned, block_of, fold_by_halves, load_columns, load_rows, pointers_at
from samebits.ops._triton.sizes import cdiv
from samebits.ops.rmsnorm.triton_kept import LANES as LANES
from samebits.ops.rmsnorm.triton_kept import block_at, launch_for, load_shared, only_inside, steps_of, store_blocks

# M rows, H the normalised axis.


@triton.jit
def hidden_at(x_ptr, residual_ptr, offsets, inside, ALIGNED: tl.constexpr):
    """x, or round(x + residual); +0 outside."""
    h = tl.load(pointers_at(x_ptr, offsets, ALIGNED), mask=inside, other=0.0)
    if residual_ptr is not None:
        added = tl.load(pointers_at(residual_ptr, offsets, ALIGNED), mask=inside, other=0.0)
        h = (h.to(tl.float32) + added.to(tl.float32)).to(x_ptr.dtype.element_ty)
    return h


@triton.jit(
    do_not_specialize=["M", "H", "reciprocal", "eps"],
    do_not_specialize_on_alignment=["x_ptr", "residual_ptr", "weight_ptr", "y_ptr", "hidden_ptr", "rstd_ptr"],
)
def rmsnorm_forward(
    x_ptr,
    residual_ptr,
    weight_ptr,
    y_ptr,
    hidden_ptr,
    rstd_ptr,
    M: tl.int32,
    H: tl.int32,
    reciprocal: tl.float32,
    eps: tl.float32,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
    ALIGNED: tl.constexpr,
    KEPT: tl.constexpr = False,
):
    """h = round(x + residual); rstd = rsqrt(sum(h*h) * (1/H) + eps); y = round((h * rstd) * weight)."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lanes = tl.zeros((ROWS, 256), dtype=tl.float32)
    # Nothing is stored before the sum is known, so that the loads of all steps are under way together.
    if KEPT:
        kept = tl.tuple(())
        for step in tl.static_range(STEPS):
            offsets, inside, _ = block_at(rows, step * 256, M, H, step + 1 < STEPS, ALIGNED)
            kept += (hidden_at(x_ptr, residual_ptr, offsets, inside, ALIGNED),)
            h = kept[step].to(tl.float32)
            # Outside h is +0 and a lane of squares is never -0: the step changes nothing.
            lanes = tl.fma(h, h, lanes)
    else:
        for start in range(0, H, 256 * STEPS):
            for step in tl.static_range(STEPS):
                offsets, inside, _ = block_of(rows, start + step * 256, M, H, 256, ALIGNED)
                h = hidden_at(x_ptr, residual_ptr, offsets, inside, ALIGNED).to(tl.float32)
                lanes = tl.fma(h, h, lanes)
    rstd = rsqrt(fold_by_halves(lanes, ROWS) * reciprocal + eps)
    if KEPT:
        results = tl.tuple(())
        for step in tl.static_range(STEPS):
            _, inside, columns = block_at(rows, step * 256, M, H, step + 1 < STEPS, ALIGNED)
            weight = load_shared(weight_ptr, columns, inside, ROWS, ALIGNED)
            y = (kept[step].to(tl.float32) * rstd[:, None]) * weight
            results += (y.to(y_ptr.dtype.element_ty),)
        if residual_ptr is not None:
            store_blocks(hidden_ptr, kept, rows, 0, M, H, STEPS, STEPS - 1, ALIGNED)
        store_blocks(y_ptr, results, rows, 0, M, H, STEPS, STEPS - 1, ALIGNED)
    else:
        for start in range(0, H, 256 * STEPS):
            offsets, inside, columns = block_of(rows, start, M, H, 256 * STEPS, ALIGNED)
            h = hidden_at(x_ptr, residual_ptr, offsets, inside, ALIGNED)
            if residual_ptr is not None:
                tl.store(pointers_at(hidden_ptr, offsets, ALIGNED), h, mask=inside)
            y = (h.to(tl.float32) * rstd[:, None]) * load_columns(weight_ptr, columns, H, ALIGNED)
            tl.store(pointers_at(y_ptr, offsets, ALIGNED), y.to(y_ptr.dtype.element_ty), mask=inside)
    tl.store(rstd_ptr + rows, rstd, mask=rows < M)


@triton.jit(
    do_not_specialize=["M", "H", "reciprocal"],
    do_not_specialize_on_alignment=["dy_ptr", "hidden_ptr", "weight_ptr", "rstd_ptr", "dhidden_ptr", "dx_ptr"],
)
def rmsnorm_backward_input(
    dy_ptr,
    hidden_ptr,
    weight_ptr,
    rstd_ptr,
    dhidden_ptr,
    dx_ptr,
    M: tl.int32,
    H: tl.int32,
    reciprocal: tl.float32,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
    ALIGNED: tl.constexpr,
    KEPT: tl.constexpr,
):
    """g = dy * weight; xhat = h * rstd; c = sum(g * xhat) * (1/H); dx = round(rstd * fma(-xhat, c, g) + dhidden)."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    rstd = tl.load(rstd_ptr + rows, mask=rows < M, other=0.0)[:, None]
    lanes = tl.zeros((ROWS, 256), dtype=tl.float32)
    if KEPT:
        gradients, normalised = tl.tuple(()), tl.tuple(())
        for step in tl.static_range(STEPS):
            offsets, inside, columns = block_at(rows, step * 256, M, H, step + 1 < STEPS, ALIGNED)
            dy = load_rows(dy_ptr, offsets, inside, ALIGNED)
            gradients += (dy * load_shared(weight_ptr, columns, inside, ROWS, ALIGNED),)
            normalised += (load_rows(hidden_ptr, offsets, inside, ALIGNED) * rstd,)
            # A missing term is skipped, so that a lane of -0 stays one.
            added = tl.fma(gradients[step], normalised[step], lanes)
            lanes = only_inside(added, lanes, inside, step + 1 < STEPS)
    else:
        for start in range(0, H, 256 * STEPS):
            for step in tl.static_range(STEPS):
                offsets, inside, columns = block_of(rows, start + step * 256, M, H, 256, ALIGNED)
                g = load_rows(dy_ptr, offsets, inside, ALIGNED) * load_columns(weight_ptr, columns, H, ALIGNED)
                xhat = load_rows(hidden_ptr, offsets, inside, ALIGNED) * rstd
                lanes = only_inside(tl.fma(g, xhat, lanes), lanes, inside, False)
    # Times -1, for Triton's own minus is a subtraction from +0, which makes +0 of +0.
    minus_c = (fold_by_halves(lanes, ROWS) * reciprocal * -1.0)[:, None]
    if KEPT:
        results = tl.tuple(())
        for step in tl.static_range(STEPS):
            dx = rstd * tl.fma(normalised[step], tl.broadcast_to(minus_c, (ROWS, 256)), gradients[step])
            if dhidden_ptr is not None:
                offsets, inside, _ = block_at(rows, step * 256, M, H, step + 1 < STEPS, ALIGNED)
                dx = dx + load_rows(dhidden_ptr, offsets, inside, ALIGNED)
            results += (dx.to(dx_ptr.dtype.element_ty),)
        store_blocks(dx_ptr, results, rows, 0, M, H, STEPS, STEPS - 1, ALIGNED)
    else:
        for start in range(0, H, 256 * STEPS):
            offsets, inside, columns = block_of(rows, start, M, H, 256 * STEPS, ALIGNED)
            g = load_rows(dy_ptr, offsets, inside, ALIGNED) * load_columns(weight_ptr, columns, H, ALIGNED)
            dx = rstd * tl.fma(load_rows(hidden_ptr, offsets, inside, ALIGNED) * rstd, minus_c, g)
            if dhidden_ptr is not None:
                dx = dx + load_rows(dhidden_ptr, offsets, inside, ALIGNED)
            tl.store(pointers_at(dx_ptr, offsets, ALIGNED), dx.to(dx_ptr.dtype.element_ty), mask=inside)


def chosen_launch(width: int, rows: int = 1) -> RowLaunch:
    """The forced launch, or the one for so many rows of this length, forward or backward."""
    return launch_for(width, rows)


def forward(
    x_MH: Tensor, weight_H: Tensor, eps: float, residual_MH: Tensor | None = None, *, launch: RowLaunch | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, rstd, hidden): hidden is x, or round(x + residual)."""
    (m, width), x, weight = x_MH.shape, x_MH.contiguous(), weight_H.contiguous()
    residual = None if residual_MH is None else residual_MH.contiguous()
    y, hidden = torch.empty_like(x), None if residual is None else torch.empty_like(x)
    rstd = torch.empty(m, dtype=torch.float32, device=x.device)
    launch = launch or chosen_launch(width, m)
    steps, kept = steps_of(launch, width)
    with on_device(x):
        run(
            rmsnorm_forward,
            cdiv(m, launch.rows),
            (x, residual, weight, y, hidden, rstd, m, width, 1.0 / width, eps),
            warps=launch.warps,
            stages=launch.stages,
            ROWS=launch.rows,
            STEPS=steps,
            ALIGNED=aligned(x, residual, weight, y, hidden),
            KEPT=kept,
        )
    return y, rstd, x if hidden is None else hidden


def backward_input(
    dy_MH: Tensor,
    hidden_MH: Tensor,
    weight_H: Tensor,
    rstd_M: Tensor,
    dhidden_MH: Tensor | None = None,
    *,
    launch: RowLaunch | None = None,
) -> Tensor:
    """The gradient of hidden, with what flows into hidden from elsewhere added before the rounding."""
    (m, width), dy, hidden, weight = dy_MH.shape, dy_MH.contiguous(), hidden_MH.contiguous(), weight_H.contiguous()
    dhidden, dx = None if dhidden_MH is None else dhidden_MH.contiguous(), torch.empty_like(dy)
    launch = launch or chosen_launch(width, m)
    steps, kept = steps_of(launch, width)
    with on_device(dy):
        run(
            rmsnorm_backward_input,
            cdiv(m, launch.rows),
            (dy, hidden, weight, rstd_M.contiguous(), dhidden, dx, m, width, 1.0 / width),
            warps=launch.warps,
            stages=launch.stages,
            ROWS=launch.rows,
            STEPS=steps,
            ALIGNED=aligned(dy, hidden, weight, dhidden, dx),
            KEPT=kept,
        )
    return dx


def backward_weight(
    dy_MH: Tensor, hidden_MH: Tensor, rstd_M: Tensor, accumulator_H: Tensor, *, launch: RowLaunch | None = None
) -> None:
    """The chain over rows of dy * (h * rstd), resumed from the accumulator (float32, contiguous), in place."""
    add_rows(dy_MH.contiguous(), hidden_MH.contiguous(), None, rstd_M.contiguous(), accumulator_H, launch)
