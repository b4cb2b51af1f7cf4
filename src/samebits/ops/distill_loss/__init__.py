"""Knowledge distillation: alpha T^2 KL(teacher || student) + (1 - alpha) cross-entropy, and its gradient.

A row's loss depends on that row alone: its sums run in 256 lanes, folded by halves. The sum over rows is one chain.
The teacher's logits are constants: a teacher that asks for a gradient is refused, never cut off in silence."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from samebits.ops.argument_types import checked
from samebits.ops.arguments import check_integer, check_tensors, choose_backend, short
from samebits.ops.backends import kernel_module
from samebits.ops.distill_loss.reference import STATISTICS
from samebits.ops.matmul import matmul
from samebits.ops.registering import call, register

REDUCTIONS = ("mean", "sum", "none")
TARGET_DTYPES = (torch.int64, torch.int32)
# Beyond these T^2 or 1/T would leave float32's comfortable range; no distillation goes there.
LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 2.0**-20, 2.0**20


@checked
def distill_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    targets: Tensor | None = None,
    *,
    temperature: float = 1.0,
    alpha: float = 1.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    denominator: float | None = None,
    backend: str | None = None,
) -> Tensor:
    """alpha T^2 KL(softmax(teacher/T) || softmax(student/T)) + (1 - alpha) CE(student, targets), in float32.

    alpha = 1 never computes CE and needs no targets; alpha = 0 never computes KL. A row whose target is `ignore_index`
    gives 0 and no gradient. "mean" divides by `denominator`, or by the number of rows not ignored; give it where a
    batch is cut into micro-batches. KL(P || P) is exactly 0; of near distributions it may be negative by rounding.
    A token that the teacher gives probability 0 adds nothing; one that only the student gives 0 makes the loss inf.
    A row of +inf, of NaN, or of -inf alone gives NaN, in itself only."""
    backend = _check(student_logits, teacher_logits, targets, backend)
    _check_numbers(temperature, alpha, reduction, denominator, targets)
    ignore_index = check_integer("distill_loss", "ignore_index", ignore_index)
    width = student_logits.shape[-1]
    targets_M = None if targets is None else targets.reshape(-1).long()
    losses, _ = call(
        "distill_loss",
        student_logits.reshape(-1, width),
        teacher_logits.detach().reshape(-1, width),
        targets_M,
        float(temperature),
        float(alpha),
        ignore_index,
        backend,
    )
    if reduction == "none":
        return losses.reshape(student_logits.shape[:-1])  # type: ignore[no-any-return]
    # A product with ones is a chain over rows; an ignored row adds +0.
    total = matmul(losses.new_ones(1, losses.shape[0]), losses[:, None], backend=backend)[0, 0]
    if reduction == "sum":
        return total
    share = call("distill_loss_share", losses.detach(), targets_M, ignore_index, denominator)
    return total * share  # type: ignore[no-any-return]


def _check(student: Tensor, teacher: Tensor, targets: Tensor | None, backend: str | None) -> str:
    """Valid tensors, and the backend."""
    backend = choose_backend("distill_loss", student, backend)
    check_tensors("distill_loss", backend, {"student_logits": student, "teacher_logits": teacher})
    if student.dim() < 1 or student.shape[-1] == 0:
        raise ValueError(
            f"distill_loss: student_logits has shape {tuple(student.shape)}; allowed: a last axis of at least 1"
        )
    if teacher.shape != student.shape:
        raise ValueError(
            f"distill_loss: teacher_logits has shape {tuple(teacher.shape)}, student_logits"
            f" {tuple(student.shape)}; they must agree"
        )
    if teacher.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            "distill_loss: teacher_logits requires a gradient; allowed: constants, from torch.no_grad() or .detach()"
        )
    if targets is None:
        return backend
    if targets.dtype not in TARGET_DTYPES:
        raise ValueError(f"distill_loss: targets has dtype {short(targets.dtype)}; allowed: int64, int32")
    if targets.shape != student.shape[:-1] or targets.device != student.device:
        raise ValueError(
            f"distill_loss: targets has shape {tuple(targets.shape)} on {targets.device}; allowed: that of"
            f" student_logits without its last axis, {tuple(student.shape[:-1])} on {student.device}"
        )
    return backend


def _check_numbers(
    temperature: float, alpha: float, reduction: str, denominator: float | None, targets: Tensor | None
) -> None:
    if not LOWEST_TEMPERATURE <= temperature <= HIGHEST_TEMPERATURE:
        raise ValueError(f"distill_loss: temperature is {temperature}; allowed: 2^-20 to 2^20")
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"distill_loss: alpha is {alpha}; allowed: 0 to 1")
    if alpha < 1.0 and targets is None:
        raise ValueError(f"distill_loss: alpha is {alpha} and targets is None; allowed without targets: alpha=1")
    if reduction not in REDUCTIONS:
        raise ValueError(f"distill_loss: reduction is {reduction!r}; allowed: {', '.join(REDUCTIONS)}")
    if denominator is not None and (reduction != "mean" or not 0.0 < denominator < float("inf")):
        raise ValueError(
            f"distill_loss: denominator is {denominator} with reduction={reduction!r}; allowed: finite, above 0, with"
            " reduction='mean'"
        )


_kernel = partial(kernel_module, __name__, "distill_loss")


def _check_targets(targets: Tensor, vocabulary: int, ignore_index: int) -> None:
    """Every target is a token or ignored. Not asked while a CUDA graph is captured: the host may not wait then."""
    if targets.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    bad = (targets != ignore_index) & ((targets < 0) | (targets >= vocabulary))
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise ValueError(
            f"distill_loss: target {int(targets[row])} in row {row}; allowed: 0 to {vocabulary - 1}, or"
            f" ignore_index={ignore_index}"
        )


def _loss_dtype(student: Tensor) -> torch.dtype:
    return torch.float64 if student.dtype == torch.float64 else torch.float32


def _forward(
    student: Tensor,
    teacher: Tensor,
    targets: Tensor | None,
    temperature: float,
    alpha: float,
    ignore_index: int,
    backend: str,
) -> tuple[Tensor, Tensor]:
    if targets is not None:
        _check_targets(targets, student.shape[1], ignore_index)
        targets = targets.contiguous()
    if student.shape[0] == 0:
        return _forward_fake(student, teacher, targets, temperature, alpha, ignore_index, backend)
    losses, statistics = _kernel(backend, student.device).forward(
        student.contiguous(), teacher.contiguous(), targets, temperature, alpha, ignore_index
    )
    return losses, statistics


def _forward_fake(
    student: Tensor,
    teacher: Tensor,
    targets: Tensor | None,
    temperature: float,
    alpha: float,
    ignore_index: int,
    backend: str,
) -> tuple[Tensor, Tensor]:
    dtype, rows = _loss_dtype(student), student.shape[0]
    return student.new_empty(rows, dtype=dtype), student.new_empty(STATISTICS, rows, dtype=dtype)


def _dstudent(
    upstream: Tensor,
    student: Tensor,
    teacher: Tensor,
    targets: Tensor | None,
    statistics: Tensor,
    temperature: float,
    alpha: float,
    ignore_index: int,
    backend: str,
) -> Tensor:
    if student.shape[0] == 0:
        return torch.empty_like(student, memory_format=torch.contiguous_format)
    targets = None if targets is None else targets.contiguous()
    dstudent: Tensor = _kernel(backend, student.device).backward(
        upstream.contiguous(),
        student.contiguous(),
        teacher.contiguous(),
        targets,
        statistics.contiguous(),
        temperature,
        alpha,
        ignore_index,
    )
    return dstudent


def _dstudent_fake(
    upstream: Tensor,
    student: Tensor,
    teacher: Tensor,
    targets: Tensor | None,
    statistics: Tensor,
    temperature: float,
    alpha: float,
    ignore_index: int,
    backend: str,
) -> Tensor:
    return torch.empty_like(student, memory_format=torch.contiguous_format)


def _share(losses: Tensor, targets: Tensor | None, ignore_index: int, denominator: float | None) -> Tensor:
    """1 / denominator, divided as IEEE says. An operator of its own: compilers on the GPU divide otherwise."""
    if denominator is not None:
        divisor = losses.new_tensor(denominator)
    elif targets is None:
        divisor = losses.new_tensor(max(1, losses.shape[0]))
    else:
        divisor = (targets != ignore_index).sum().clamp(min=1).to(losses.dtype)
    return torch.ones_like(divisor) / divisor


def _share_fake(losses: Tensor, targets: Tensor | None, ignore_index: int, denominator: float | None) -> Tensor:
    return losses.new_empty(())


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    student, teacher, targets, *ctx.numbers = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(student, teacher, targets, output[1])


def _backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    student, teacher, targets, statistics = ctx.saved_tensors
    dstudent = call("distill_loss_dstudent", upstream, student, teacher, targets, statistics, *ctx.numbers)
    return dstudent, None, None, None, None, None, None


register(
    "distill_loss(Tensor student, Tensor teacher, Tensor? targets, float temperature, float alpha, int ignore_index,"
    " str backend) -> (Tensor, Tensor)",
    run=_forward,
    fake=_forward_fake,
    setup_context=_setup_context,
    backward=_backward,
)
register(
    "distill_loss_dstudent(Tensor upstream, Tensor student, Tensor teacher, Tensor? targets, Tensor statistics,"
    " float temperature, float alpha, int ignore_index, str backend) -> Tensor",
    run=_dstudent,
    fake=_dstudent_fake,
)
register(
    "distill_loss_share(Tensor losses, Tensor? targets, int ignore_index, float? denominator) -> Tensor",
    run=_share,
    fake=_share_fake,
)
