"""The distillation loss by Triton: a program takes whole rows, and every sum over the vocabulary runs in 256 lanes.

Knows nothing of autograd, validation or empty tensors; the public function does. Rows and warps of a program decide
speed alone: no sum is left to a reduction whose order the compiler would choose; maxima are exact in any order."""

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
from samebits.ops.distill_loss.reference import STATISTICS, Weights

# M rows, V the vocabulary. Lane l adds the terms l, l + 256, l + 512, ...: 256 decides bits and is part of the order.

ROW_LAUNCH: Final = RowLaunch(rows=1, warps=4)


@triton.jit
def load_block(ptr, rows, start, M, V, ALIGNED: tl.constexpr):
    """A (rows, 256) block in float32; what does not exist is -inf, whose exponential is 0."""
    offsets, inside, _ = block_of(rows, start, M, V, 256, ALIGNED)
    return tl.load(pointers_at(ptr, offsets, ALIGNED), mask=inside, other=float("-inf")).to(tl.float32)


@triton.jit
def row_maximum(ptr, rows, M, V, ROWS: tl.constexpr, ALIGNED: tl.constexpr):
    """The largest of each row, +0 for -0: which of the two a maximum meets depends on the order."""
    best = tl.full((ROWS, 256), float("-inf"), tl.float32)
    for start in range(0, V, 256):
        best = tl.maximum(best, load_block(ptr, rows, start, M, V, ALIGNED))
    return (tl.max(best, 1) + 0.0)[:, None]


@triton.jit
def row_total(ptr, maximum, inverse, rows, M, V, ROWS: tl.constexpr, ALIGNED: tl.constexpr):
    """The sum of exp(x * inverse - maximum * inverse) over each row."""
    lanes = tl.zeros((ROWS, 256), dtype=tl.float32)
    for start in range(0, V, 256):
        # A sum of exponentials is never -0: the 0 of a missing element changes nothing.
        lanes = lanes + exp(load_block(ptr, rows, start, M, V, ALIGNED) * inverse - maximum * inverse)
    return fold_by_halves(lanes, ROWS)[:, None]


@triton.jit
def excess(gap):
    """e^-gap - 1 + gap where |gap| < 1, by the series of x^2 (1/2! + x/3! + ...): never negative, and 0 for 0."""
    x = 0.0 - gap
    series = tl.full(x.shape, 2.5052107943679403e-08, tl.float32)
    series = tl.fma(series, x, tl.full(x.shape, 2.755731998149713e-07, tl.float32))
    series = tl.fma(series, x, tl.full(x.shape, 2.7557318844628753e-06, tl.float32))
    series = tl.fma(series, x, tl.full(x.shape, 2.4801587642286904e-05, tl.float32))
    series = tl.fma(series, x, tl.full(x.shape, 0.00019841270113829523, tl.float32))
    series = tl.fma(series, x, tl.full(x.shape, 0.0013888889225199819, tl.float32))
    series = tl.fma(series, x, tl.full(x.shape, 0.008333333767950535, tl.float32))
    series = tl.fma(series, x, tl.full(x.shape, 0.0416666679084301, tl.float32))
    series = tl.fma(series, x, tl.full(x.shape, 0.1666666716337204, tl.float32))
    series = tl.fma(series, x, tl.full(x.shape, 0.5, tl.float32))
    return (x * x) * series


@triton.jit(
    do_not_specialize=["M", "V", "ignore_index", "inverse", "divergence_weight", "entropy_weight"],
    do_not_specialize_on_alignment=["student_ptr", "teacher_ptr", "targets_ptr", "loss_ptr", "statistics_ptr"],
)
def distill_loss_forward(
    student_ptr,
    teacher_ptr,
    targets_ptr,
    loss_ptr,
    statistics_ptr,
    M: tl.int32,
    V: tl.int32,
    ignore_index: tl.int64,
    inverse: tl.float32,
    divergence_weight: tl.float32,
    entropy_weight: tl.float32,
    ROWS: tl.constexpr,
    ALIGNED: tl.constexpr,
    DIVERGENCE: tl.constexpr,
    ENTROPY: tl.constexpr,
):
    """loss = fma(divergence_weight, KL, entropy_weight * CE), or the one term that is asked for."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    exists = rows < M
    # Statistics lie one array of M after the other.
    place = statistics_ptr + rows
    maximum = row_maximum(student_ptr, rows, M, V, ROWS, ALIGNED)
    tl.store(place, tl.reshape(maximum, (ROWS,)), mask=exists)
    loss = tl.zeros((ROWS, 1), dtype=tl.float32)
    if ENTROPY:
        total = row_total(student_ptr, maximum, 1.0, rows, M, V, ROWS, ALIGNED)
        tl.store(place + 4 * M.to(tl.int64), tl.reshape(tl.div_rn(1.0, total), (ROWS,)), mask=exists)
        target = tl.load(targets_ptr + rows, mask=exists, other=-1)
        known = exists & (target >= 0) & (target < V)
        at_target = tl.load(student_ptr + rows.to(tl.int64) * V + target, mask=known, other=float("nan")).to(tl.float32)
        loss = entropy_weight * (log(total) - (at_target[:, None] - maximum))
    if DIVERGENCE:
        teacher_maximum = row_maximum(teacher_ptr, rows, M, V, ROWS, ALIGNED)
        student_total = row_total(student_ptr, maximum, inverse, rows, M, V, ROWS, ALIGNED)
        teacher_total = row_total(teacher_ptr, teacher_maximum, inverse, rows, M, V, ROWS, ALIGNED)
        share, student_share = tl.div_rn(1.0, teacher_total), tl.div_rn(1.0, student_total)
        tl.store(place + M, tl.reshape(teacher_maximum, (ROWS,)), mask=exists)
        tl.store(place + 2 * M.to(tl.int64), tl.reshape(student_share, (ROWS,)), mask=exists)
        tl.store(place + 3 * M.to(tl.int64), tl.reshape(share, (ROWS,)), mask=exists)
        log_student, log_teacher = log(student_total), log(teacher_total)
        lanes = tl.zeros((ROWS, 256), dtype=tl.float32)
        for start in range(0, V, 256):
            d = load_block(teacher_ptr, rows, start, M, V, ALIGNED) * inverse - teacher_maximum * inverse
            mine = load_block(student_ptr, rows, start, M, V, ALIGNED) * inverse - maximum * inverse
            p, q = exp(d) * share, exp(mine) * student_share
            gap = (d - log_teacher) - (mine - log_student)
            # Each term is p (e^-gap - 1 + gap), which is never negative: q - p + p gap where that does not cancel.
            near, far = tl.fma(p, excess(gap), lanes), lanes + tl.fma(p, gap, q - p)
            # Where the teacher gives probability 0, whatever its logarithm; of what does not exist q is 0 as well.
            lanes = tl.where(p == 0.0, lanes + q, tl.where((gap < 1.0) & (gap > -1.0), near, far))
        divergence = fold_by_halves(lanes, ROWS)[:, None]
        loss = tl.fma(divergence_weight, divergence, loss) if ENTROPY else divergence_weight * divergence
    out = tl.reshape(loss, (ROWS,))
    if targets_ptr is not None:
        ignored = tl.load(targets_ptr + rows, mask=exists, other=-1) == ignore_index
        out = tl.where(ignored, 0.0, out)
    tl.store(loss_ptr + rows, out, mask=exists)


@triton.jit(
    do_not_specialize=["M", "V", "ignore_index", "inverse", "divergence_weight", "entropy_weight"],
    do_not_specialize_on_alignment=[
        "upstream_ptr",
        "student_ptr",
        "teacher_ptr",
        "targets_ptr",
        "statistics_ptr",
        "dstudent_ptr",
    ],
)
def distill_loss_backward(
    upstream_ptr,
    student_ptr,
    teacher_ptr,
    targets_ptr,
    statistics_ptr,
    dstudent_ptr,
    M: tl.int32,
    V: tl.int32,
    ignore_index: tl.int64,
    inverse: tl.float32,
    divergence_weight: tl.float32,
    entropy_weight: tl.float32,
    ROWS: tl.constexpr,
    ALIGNED: tl.constexpr,
    DIVERGENCE: tl.constexpr,
    ENTROPY: tl.constexpr,
):
    """dstudent = round(fma(g * alpha T, p_student - p_teacher, (g * (1 - alpha)) * (p_plain - onehot)))."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    exists = rows < M
    place, step = statistics_ptr + rows, M.to(tl.int64)
    upstream = tl.load(upstream_ptr + rows, mask=exists, other=0.0)[:, None]
    maximum = tl.load(place, mask=exists, other=0.0)[:, None]
    teacher_maximum = tl.load(place + step, mask=exists & DIVERGENCE, other=0.0)[:, None]
    student_share = tl.load(place + 2 * step, mask=exists & DIVERGENCE, other=0.0)[:, None]
    teacher_share = tl.load(place + 3 * step, mask=exists & DIVERGENCE, other=0.0)[:, None]
    plain_share = tl.load(place + 4 * step, mask=exists & ENTROPY, other=0.0)[:, None]
    if targets_ptr is not None:
        target = tl.load(targets_ptr + rows, mask=exists, other=-1)[:, None]
    for start in range(0, V, 256):
        offsets, inside, columns = block_of(rows, start, M, V, 256, ALIGNED)
        student = tl.load(pointers_at(student_ptr, offsets, ALIGNED), mask=inside, other=0.0).to(tl.float32)
        gradient = tl.zeros((ROWS, 256), dtype=tl.float32)
        if ENTROPY:
            onehot = tl.where(columns[None, :] == target, 1.0, 0.0)
            gradient = (upstream * entropy_weight) * (exp(student - maximum) * plain_share - onehot)
        if DIVERGENCE:
            teacher = tl.load(pointers_at(teacher_ptr, offsets, ALIGNED), mask=inside, other=0.0).to(tl.float32)
            p_student = exp(student * inverse - maximum * inverse) * student_share
            p_teacher = exp(teacher * inverse - teacher_maximum * inverse) * teacher_share
            weight = upstream * divergence_weight
            if ENTROPY:
                gradient = tl.fma(tl.broadcast_to(weight, (ROWS, 256)), p_student - p_teacher, gradient)
            else:
                gradient = weight * (p_student - p_teacher)
        if targets_ptr is not None:
            gradient = tl.where(target == ignore_index, 0.0, gradient)
        tl.store(pointers_at(dstudent_ptr, offsets, ALIGNED), gradient.to(dstudent_ptr.dtype.element_ty), mask=inside)


def forward(
    student_MV: Tensor,
    teacher_MV: Tensor,
    targets_M: Tensor | None,
    temperature: float,
    alpha: float,
    ignore_index: int,
    *,
    launch: RowLaunch | None = None,
) -> tuple[Tensor, Tensor]:
    """(loss of every row, what the backward needs)."""
    launch, weights = launch or forced_launch(RowLaunch) or ROW_LAUNCH, Weights.of(temperature, alpha)
    (m, v), device = student_MV.shape, student_MV.device
    loss = torch.empty(m, dtype=torch.float32, device=device)
    statistics = torch.empty(STATISTICS, m, dtype=torch.float32, device=device)
    with on_device(student_MV):
        run(
            distill_loss_forward,
            cdiv(m, launch.rows),
            (
                student_MV,
                teacher_MV,
                targets_M,
                loss,
                statistics,
                m,
                v,
                ignore_index,
                weights.inverse_temperature,
                weights.divergence,
                weights.entropy,
            ),
            warps=launch.warps,
            stages=launch.stages,
            ROWS=launch.rows,
            ALIGNED=aligned(student_MV, teacher_MV),
            DIVERGENCE=weights.divergence != 0.0,
            ENTROPY=weights.entropy != 0.0,
        )
    return loss, statistics


def backward(
    upstream_M: Tensor,
    student_MV: Tensor,
    teacher_MV: Tensor,
    targets_M: Tensor | None,
    statistics: Tensor,
    temperature: float,
    alpha: float,
    ignore_index: int,
    *,
    launch: RowLaunch | None = None,
) -> Tensor:
    """The gradient of the student's logits."""
    launch, weights = launch or forced_launch(RowLaunch) or ROW_LAUNCH, Weights.of(temperature, alpha)
    (m, v), dstudent = student_MV.shape, torch.empty_like(student_MV)
    with on_device(student_MV):
        run(
            distill_loss_backward,
            cdiv(m, launch.rows),
            (
                upstream_M,
                student_MV,
                teacher_MV,
                targets_M,
                statistics,
                dstudent,
                m,
                v,
                ignore_index,
                weights.inverse_temperature,
                weights.divergence_gradient,
                weights.entropy,
            ),
            warps=launch.warps,
            stages=launch.stages,
            ROWS=launch.rows,
            ALIGNED=aligned(student_MV, teacher_MV, dstudent),
            DIVERGENCE=weights.divergence != 0.0,
            ENTROPY=weights.entropy != 0.0,
        )
    return dstudent
