"""How a checker drives `distill_loss`: inputs, exact values with their derived bounds, and launch numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from samebits.contracts.spec import Arguments, Bounded, OperatorSpec
from samebits.native.launch_numbers import cpu_launches
from samebits.numerics.elementary import MAXIMUM_ULP
from samebits.numerics.recipes import make
from samebits.ops.distill_loss import distill_loss
from samebits.ops.distill_loss.reference import rows64
from samebits.ops.rounding import FLOAT32_ROUNDOFF, FLOAT32_TINY, allowed_error

TRITON_ROWS_AND_WARPS = ((1, 1), (1, 8), (4, 4), (8, 8))
# 1/3 is not exact in float32, and both terms weigh something.
TEMPERATURE, ALPHA = 3.0, 0.5
IGNORE_INDEX = -100
# Powers of two that bring a recipe to the size of logits; exact.
LOGIT_SCALE = {"normal": 4.0, "wide": 2.0**-12, "cancelling": 2.0**-18}
# First-order bounds below are taken this much wider for the products of small errors that they leave out.
SECOND_ORDER = 1.01
# Of h by its series: ten coefficients, nine fused steps whose errors shrink with the powers of a gap, two products.
SERIES_ROUNDINGS = 8


def mixed_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    targets: Tensor,
    *,
    temperature: float = TEMPERATURE,
    alpha: float = ALPHA,
) -> Tensor:
    """The subject of the contract: one loss a row; T = 3 and alpha = 1/2 unless asked otherwise."""
    return distill_loss(student_logits, teacher_logits, targets, temperature=temperature, alpha=alpha, reduction="none")


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    rows, vocabulary = shape
    dtype, scale = getattr(torch, format), LOGIT_SCALE.get(recipe, 1.0)
    student, teacher = (
        (torch.from_numpy(make(recipe, (rows, vocabulary), 2 * seed + each, format)) * scale).to(dtype)
        for each in (0, 1)
    )
    row = torch.arange(rows)
    targets = (row * 2654435761 + seed) % vocabulary
    targets[row % 5 == 3] = IGNORE_INDEX
    return {"student_logits": student, "teacher_logits": teacher, "targets": targets}


@dataclass(slots=True)
class _Softmax:
    """A row's softmax in float64, and how far float32 may be from each of its parts."""

    p: Tensor
    relative: Tensor
    """Error of p against p; beside it FLOAT32_TINY, where p underflows."""
    log_p: Tensor
    of_log_p: Tensor

    @staticmethod
    def of(x: Tensor, temperature: float, sum_error: float) -> _Softmax:
        u = FLOAT32_ROUNDOFF
        z = x.double() / temperature
        d = z - z.max(-1, keepdim=True).values
        # 1/T and the product, of the element and of the maximum; then the difference.
        of_d = 2 * u * (z.abs() + z.max(-1, keepdim=True).values.abs()) + u * d.abs() + 4 * FLOAT32_TINY
        of_exp = torch.expm1(of_d + 2 * u * MAXIMUM_ULP["exp"])
        p, log_p = z.softmax(-1), z.log_softmax(-1)
        log_total = (d - log_p)[..., :1]
        of_total = (p * of_exp).sum(-1, keepdim=True) * (1 + sum_error) + sum_error + x.shape[-1] * FLOAT32_TINY
        of_log = of_total / (1 - of_total) + 2 * u * MAXIMUM_ULP["log"] * log_total.abs()
        return _Softmax(
            p=p,
            relative=SECOND_ORDER * (of_exp + of_total / (1 - of_total) + 2 * u),
            log_p=log_p,
            of_log_p=SECOND_ORDER * (of_d + of_log + u * log_p.abs()),
        )


def _bounded(exact: Tensor, error: Tensor, ignored: Tensor, dtype: torch.dtype) -> Bounded:
    """The last rounding added to an error that is already complete; ignored rows are exact."""
    allowed = allowed_error(exact, error, 1.0, 1, 0, dtype)
    return Bounded(exact=exact, allowed=torch.where(ignored, 0.0, allowed))


def _exact(arguments: Arguments, dy: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    return bounds(arguments, dy, error, TEMPERATURE, ALPHA)


def bounds(
    arguments: Arguments, dy: Tensor, error: Callable[[int], float], temperature: float, alpha: float
) -> dict[str, Bounded]:
    """The loss and the student's gradient in float64, at any temperature and alpha. A term of weight 0 has no error."""
    student_logits, teacher_logits, targets = arguments.values()
    u, ignored, of_sum = FLOAT32_ROUNDOFF, targets == IGNORE_INDEX, error(student_logits.shape[1])
    safe = torch.where(ignored, 0, targets)[:, None]
    student, teacher = (_Softmax.of(x, temperature, of_sum) for x in (student_logits, teacher_logits))
    plain = _Softmax.of(student_logits, 1.0, of_sum)
    divergence, of_divergence = _divergence(student, teacher, of_sum)
    entropy, of_entropy = -plain.log_p.gather(-1, safe)[:, 0], plain.of_log_p.gather(-1, safe)[:, 0]
    loss = rows64(student_logits, teacher_logits, targets, temperature, alpha)
    weight = alpha * temperature**2
    # Each weight is rounded, then its product, then the sum of the two.
    of_loss = weight * (of_divergence + 2 * u * divergence.abs()) + (1 - alpha) * (of_entropy + 2 * u * entropy)
    of_loss = SECOND_ORDER * (of_loss + u * loss.abs())

    onehot = torch.zeros_like(plain.p).scatter(-1, safe, 1.0)
    upstream = dy.double()[:, None]
    miss, off = student.p - teacher.p, plain.p - onehot
    gradient = upstream * (alpha * temperature * miss + (1 - alpha) * off)
    of_miss = student.p * student.relative + teacher.p * teacher.relative + 4 * FLOAT32_TINY
    of_off = plain.p * plain.relative + 2 * FLOAT32_TINY
    of_gradient = alpha * temperature * (of_miss + 4 * u * miss.abs()) + (1 - alpha) * (of_off + 4 * u * off.abs())
    of_gradient = SECOND_ORDER * (upstream.abs() * of_gradient + u * gradient.abs()) + 4 * FLOAT32_TINY
    gradient = torch.where(ignored[:, None], 0.0, gradient)
    return {
        "output": _bounded(loss, of_loss, ignored, torch.float32),
        "student_logits": _bounded(gradient, of_gradient, ignored[:, None], student_logits.dtype),
    }


def _divergence(student: _Softmax, teacher: _Softmax, of_sum: float) -> tuple[Tensor, Tensor]:
    """KL and its error: of each term, of the sum."""
    u, gap = FLOAT32_ROUNDOFF, teacher.log_p - student.log_p
    of_gap = teacher.of_log_p + student.of_log_p + u * gap.abs()
    of_p, of_q = (each.p * each.relative + 2 * FLOAT32_TINY for each in (teacher, student))
    # Near: p h(gap), h = e^-gap - 1 + gap. Of the gap the error is h' = 1 - e^-gap times as large, and half its square
    # times e^-gap more.
    excess = torch.expm1(-gap) + gap
    moved = torch.expm1(-gap).abs() * of_gap + torch.exp(-gap + of_gap) * of_gap**2
    near = of_p * excess + teacher.p * (1 + teacher.relative) * (moved + SERIES_ROUNDINGS * u * excess)
    # Far: p gap + (q - p), a difference and a fused product.
    term = teacher.p * gap + student.p - teacher.p
    far = of_p * (gap.abs() + 1) + of_q + teacher.p * (1 + teacher.relative) * of_gap
    far = far + u * (student.p - teacher.p).abs() + u * term.abs()
    # Whether a gap is below 1 is decided by the rounded one. Without probability of the teacher's a term is q.
    of_term = torch.where(gap.abs() + of_gap < 1, near, torch.maximum(torch.nan_to_num(near, nan=0.0, posinf=0.0), far))
    of_term = torch.where(teacher.p == 0, of_q, of_term)
    magnitude = torch.where(teacher.p == 0, student.p, term).abs() + of_term
    plain = torch.where(teacher.p == 0, 0.0, teacher.p * gap)
    return plain.sum(-1), SECOND_ORDER * (of_term.sum(-1) + of_sum * magnitude.sum(-1))


def launches(backend: str, format: str) -> Sequence[Mapping[str, object]]:
    """Threads times instruction sets on the CPU; rows of a program times warps by Triton."""
    if backend == "cpu":
        return cpu_launches()
    from samebits.ops._triton.rows import RowLaunch

    return [{"launch": RowLaunch(rows=rows, warps=warps)} for rows, warps in TRITON_ROWS_AND_WARPS]


SPECS = {
    "distill_loss": OperatorSpec(
        name="distill_loss",
        row_arguments=("student_logits", "teacher_logits", "targets"),
        shared_arguments=(),
        shape_axes="MV",
        make=_make,
        exact=_exact,
        launches=launches,
        without_gradient=("teacher_logits", "targets"),
    )
}
