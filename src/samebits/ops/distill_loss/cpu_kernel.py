"""The distillation loss on the CPU: hands pointers to the C++ kernel beside this file. Rows come contiguous."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops._cpu import FORMATS, pointer, run
from samebits.ops.distill_loss.reference import STATISTICS, Weights


def forward(
    student_MV: Tensor,
    teacher_MV: Tensor,
    targets_M: Tensor | None,
    temperature: float,
    alpha: float,
    ignore_index: int,
) -> tuple[Tensor, Tensor]:
    """(loss of every row, what the backward needs)."""
    rows, vocabulary = student_MV.shape
    weights = Weights.of(temperature, alpha)
    loss_M, statistics = torch.empty(rows, dtype=torch.float32), torch.empty(STATISTICS, rows, dtype=torch.float32)
    run(
        "distill_loss_forward",
        "iqqpppqfffpp",
        FORMATS[student_MV.dtype],
        rows,
        vocabulary,
        *map(pointer, (student_MV, teacher_MV, targets_M)),
        ignore_index,
        weights.inverse_temperature,
        weights.divergence,
        weights.entropy,
        *map(pointer, (loss_M, statistics)),
    )
    return loss_M, statistics


def backward(
    upstream_M: Tensor,
    student_MV: Tensor,
    teacher_MV: Tensor,
    targets_M: Tensor | None,
    statistics: Tensor,
    temperature: float,
    alpha: float,
    ignore_index: int,
) -> Tensor:
    """The gradient of the student's logits."""
    rows, vocabulary = student_MV.shape
    weights, dstudent_MV = Weights.of(temperature, alpha), torch.empty_like(student_MV)
    run(
        "distill_loss_backward",
        "iqqppppqfffpp",
        FORMATS[student_MV.dtype],
        rows,
        vocabulary,
        *map(pointer, (upstream_M, student_MV, teacher_MV, targets_M)),
        ignore_index,
        weights.inverse_temperature,
        weights.divergence_gradient,
        weights.entropy,
        *map(pointer, (statistics, dstudent_MV)),
    )
    return dstudent_MV
