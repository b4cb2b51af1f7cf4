"""What is traced and compiled of the distillation loss by Triton: both terms, each alone, and the gradient."""

from __future__ import annotations

import torch

from samebits.contracts.traced import (
    VOCABULARY,
    Call,
    Memory,
    Outputs,
    TracedKernels,
    batch_axis,
    by_rows,
    by_token,
    checked,
    over_rows,
    result,
    tokens,
)
from samebits.ops.distill_loss import triton_kernel
from samebits.ops.distill_loss.check import launches


def _forward(alpha: float) -> Call:
    def call(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
        student, teacher = by_rows(memory, dtype, student=(m, VOCABULARY), teacher=(m, VOCABULARY))
        loss, statistics = triton_kernel.forward(student, teacher, tokens(m), 2.0, alpha, -100)
        outputs = {"loss": by_token(loss, m)}
        return {**outputs, "statistics": result(statistics, 1)} if 0.0 < alpha < 1.0 else outputs

    return call


def _backward(alpha: float) -> Call:
    def call(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
        student, teacher = by_rows(memory, dtype, student=(m, VOCABULARY), teacher=(m, VOCABULARY))
        (upstream,) = by_rows(memory, torch.float32, upstream=(m,))
        statistics = torch.zeros(5, m)
        memory.add("statistics", statistics, *batch_axis(statistics, 1))
        made = triton_kernel.backward(upstream, student, teacher, tokens(m), statistics, 2.0, alpha, -100)
        return {"dstudent": by_token(made, m)}

    return call


KERNELS = TracedKernels(
    cases=(
        over_rows("the loss over 304 tokens, both terms", _forward(0.5), 2, checked(launches)),
        over_rows("the divergence alone", _forward(1.0), 1, checked(launches)),
        over_rows("the cross-entropy alone", _forward(0.0), 1, checked(launches)),
        over_rows("the gradient", _backward(0.5), 1, checked(launches)),
    ),
    variants=("DIVERGENCE", "ENTROPY"),
)
