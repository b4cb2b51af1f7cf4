"""The distillation loss, said plainly: the definition that every backend is held to.

float32 after every step, fused where fma is written. r = 1/T; for the student s and the teacher t:
  max = max_v x + 0             d = x*r - max*r         e = exp(d)      S = lanes-256 sum of e     log p = d - log(S)
  p = e * (1/S)                 g = log p_t - log p_s   KL = lanes-256 sum of a term that is never negative:
    p_t = 0:  sum + p_s         |g| < 1:  fma(p_t, h, sum)          else:  sum + fma(p_t, g, p_s - p_t)
    x = 0 - g,  h = x*x * (c_0 + x (c_1 + x (... c_9))), fused, c_k = 1/(k + 2)!: e^-g - 1 + g
  CE = log(S) - d_y of the student with r = 1
  loss = fma(alpha T^2, KL, (1 - alpha) * CE), or the one term whose weight is not 0
  dstudent = fma(g * alpha T, p_s - p_t, (g * (1 - alpha)) * (p_1 - onehot)) or one term; p_1: the student, r = 1
Lanes: element v to lane v mod 256, from +0; then folded by halves. Weights are rounded once from float64.
Probabilities sum to 1, so that KL = sum of p_t g is the sum of p_t g + p_s - p_t = p_t (e^-g - 1 + g) as well: of near
distributions, where rounding would drown the plain sum and could turn its sign, nothing cancels here.
In float64 the plain formulas are torch's, exact enough to judge the others against."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from samebits.numerics.elementary import evaluate
from samebits.numerics.fma import fma32

# Decides bits: how many partial sums a row has. Part of the order `lanes-256`.
LANES = 256
# Per row, for the backward: the raw maxima of student and teacher, and 1/S of student, teacher, student with T = 1.
STATISTICS = 5

# 1/2!, 1/3!, ... 1/11!, each rounded once: of e^x - 1 - x = x^2 (1/2! + x/3! + ...), good to 2^-28 where |x| < 1.
SERIES = tuple(np.float32(1.0) / np.float32(math.factorial(2 + k)) for k in range(10))

# Infinities, and what comes of them, are data like any other.
_quietly = np.errstate(all="ignore")


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """The numbers that every kernel takes, each rounded once from float64. A term of weight 0 is never computed."""

    inverse_temperature: float
    divergence: float
    """alpha T^2, of KL."""
    entropy: float
    """1 - alpha, of CE."""
    divergence_gradient: float
    """alpha T: KL's gradient loses one T to the chain rule."""

    @staticmethod
    def of(temperature: float, alpha: float) -> Weights:
        return Weights(
            inverse_temperature=float(np.float32(1.0) / np.float32(temperature)),
            divergence=float(np.float32(alpha * temperature * temperature)),
            entropy=float(np.float32(1.0 - alpha)),
            divergence_gradient=float(np.float32(alpha * temperature)),
        )


@dataclass(slots=True)
class _Distribution:
    """One softmax, row by row: what the loss and its gradient need of it."""

    shifted: np.ndarray
    weights: np.ndarray
    total: np.ndarray

    @staticmethod
    def of(x_MV: np.ndarray, maximum_M1: np.ndarray, inverse: float) -> _Distribution:
        shifted = _shifted(x_MV, maximum_M1, inverse)
        weights = evaluate("exp", shifted)
        return _Distribution(
            shifted, weights, lanes_sum(x_MV.shape, lambda sums, here: sums + weights[:, here])[:, None]
        )

    @property
    def inverse_total(self) -> np.ndarray:
        return np.float32(1.0) / self.total

    @property
    def logarithms(self) -> np.ndarray:
        return self.shifted - evaluate("log", self.total)


def lanes_sum(shape: tuple[int, ...], step: Callable[[np.ndarray, slice], np.ndarray]) -> np.ndarray:
    """The lanes order: step(sums, columns) adds these columns to their lanes' sums."""
    rows, width = shape
    lanes_ML = np.zeros((rows, LANES), np.float32)
    for start in range(0, width, LANES):
        here = slice(start, min(start + LANES, width))
        lanes = slice(0, here.stop - start)
        lanes_ML[:, lanes] = step(lanes_ML[:, lanes], here)
    half = LANES // 2
    while half:
        lanes_ML = lanes_ML[:, :half] + lanes_ML[:, half : 2 * half]
        half //= 2
    return lanes_ML[:, 0]


@_quietly
def forward(
    student_MV: Tensor,
    teacher_MV: Tensor,
    targets_M: Tensor | None,
    temperature: float,
    alpha: float,
    ignore_index: int,
) -> tuple[Tensor, Tensor]:
    """(loss of every row, what the backward needs). Ignored rows give 0."""
    if student_MV.dtype == torch.float64:
        loss64_M = rows64(student_MV, teacher_MV, targets_M, temperature, alpha, ignore_index)
        return loss64_M, student_MV.new_zeros(STATISTICS, len(loss64_M))
    weights, student, teacher = Weights.of(temperature, alpha), _float32(student_MV), _float32(teacher_MV)
    loss_M = np.zeros(len(student), np.float32)
    statistics = np.zeros((STATISTICS, len(student)), np.float32)
    maximum, maximum_t = (x.max(-1, keepdims=True) + np.float32(0.0) for x in (student, teacher))
    statistics[0], statistics[1] = maximum[:, 0], maximum_t[:, 0]
    if weights.entropy:
        plain = _Distribution.of(student, maximum, 1.0)
        statistics[4] = plain.inverse_total[:, 0]
        at_target = np.take_along_axis(plain.shifted, _safe(targets_M, ignore_index)[:, None], -1)
        loss_M = np.float32(weights.entropy) * (evaluate("log", plain.total) - at_target)[:, 0]
    if weights.divergence:
        mine = _Distribution.of(student, maximum, weights.inverse_temperature)
        theirs = _Distribution.of(teacher, maximum_t, weights.inverse_temperature)
        statistics[2], statistics[3] = mine.inverse_total[:, 0], theirs.inverse_total[:, 0]
        divergence_M = _divergence(theirs, mine)
        weight = np.full_like(divergence_M, weights.divergence)
        loss_M = fma32(weight, divergence_M, loss_M) if weights.entropy else weight * divergence_M
    if targets_M is not None:
        loss_M = np.where(targets_M.cpu().numpy() == ignore_index, np.float32(0.0), loss_M)
    device = student_MV.device
    return torch.from_numpy(loss_M).to(device), torch.from_numpy(statistics).to(device)


def _divergence(theirs: _Distribution, mine: _Distribution) -> np.ndarray:
    p_MV, q_MV = theirs.weights * theirs.inverse_total, mine.weights * mine.inverse_total
    gap_MV = theirs.logarithms - mine.logarithms

    def step(sums: np.ndarray, here: slice) -> np.ndarray:
        p, q, gap = p_MV[:, here], q_MV[:, here], gap_MV[:, here]
        near, far = fma32(p, _excess(gap), sums), sums + fma32(p, gap, q - p)
        return np.where(p == 0, sums + q, np.where(np.abs(gap) < 1, near, far))

    return lanes_sum(p_MV.shape, step)


def _excess(gap: np.ndarray) -> np.ndarray:
    """e^-gap - 1 + gap where |gap| < 1: never negative, and 0 for 0."""
    x = np.float32(0.0) - gap
    series = np.full_like(x, SERIES[-1])
    for coefficient in SERIES[-2::-1]:
        series = fma32(series, x, np.full_like(x, coefficient))
    return (x * x) * series


@_quietly
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
    """The gradient of the student's logits. The teacher's are constants."""
    if student_MV.dtype == torch.float64:
        with torch.enable_grad():
            leaf = student_MV.detach().requires_grad_()
            loss64 = rows64(leaf, teacher_MV, targets_M, temperature, alpha, ignore_index)
            return torch.autograd.grad(loss64, leaf, upstream_M)[0]
    weights, student, teacher = Weights.of(temperature, alpha), _float32(student_MV), _float32(teacher_MV)
    upstream, saved = _float32(upstream_M)[:, None], _float32(statistics)[:, :, None]

    def softmax(x_MV: np.ndarray, maximum: np.ndarray, inverse: float, inverse_total: np.ndarray) -> np.ndarray:
        p_MV: np.ndarray = evaluate("exp", _shifted(x_MV, maximum, inverse)) * inverse_total
        return p_MV

    gradient_MV = np.zeros(student.shape, np.float32)
    if weights.entropy:
        onehot = np.arange(student.shape[1]) == _safe(targets_M, ignore_index)[:, None]
        error_MV = softmax(student, saved[0], 1.0, saved[4]) - onehot.astype(np.float32)
        gradient_MV = (upstream * np.float32(weights.entropy)) * error_MV
    if weights.divergence:
        scale = weights.inverse_temperature
        error_MV = softmax(student, saved[0], scale, saved[2]) - softmax(teacher, saved[1], scale, saved[3])
        weight_M1 = np.broadcast_to(upstream * np.float32(weights.divergence_gradient), error_MV.shape)
        gradient_MV = fma32(weight_M1, error_MV, gradient_MV) if weights.entropy else weight_M1 * error_MV
    if targets_M is not None:
        gradient_MV = np.where(targets_M.cpu().numpy()[:, None] == ignore_index, np.float32(0.0), gradient_MV)
    return torch.from_numpy(gradient_MV).to(device=student_MV.device, dtype=student_MV.dtype)


def rows64(
    student: Tensor, teacher: Tensor, targets: Tensor | None, temperature: float, alpha: float, ignore_index: int = -100
) -> Tensor:
    """alpha T^2 sum_v p (log p - log q) + (1 - alpha) (-log softmax(student)[target]) of every row, in float64."""
    loss = student.new_zeros(student.shape[0], dtype=torch.float64)
    if alpha > 0.0:
        log_q = (student.double() / temperature).log_softmax(-1)
        log_p = (teacher.double() / temperature).log_softmax(-1)
        terms = torch.where(log_p.exp() == 0, 0.0, log_p.exp() * (log_p - log_q))
        loss = loss + alpha * temperature**2 * terms.sum(-1)
    if alpha < 1.0:
        assert targets is not None
        safe = torch.where(targets == ignore_index, 0, targets)
        loss = loss - (1.0 - alpha) * student.double().log_softmax(-1).gather(-1, safe[:, None])[:, 0]
    return loss if targets is None else torch.where(targets == ignore_index, 0.0, loss)


def mixed64(student_logits: Tensor, teacher_logits: Tensor, targets: Tensor) -> Tensor:
    """What the contract's subject computes: T = 3, alpha = 1/2, one loss a row."""
    return rows64(student_logits, teacher_logits, targets, 3.0, 0.5)


def _shifted(x_MV: np.ndarray, maximum_M1: np.ndarray, inverse: float) -> np.ndarray:
    shifted: np.ndarray = x_MV * np.float32(inverse) - maximum_M1 * np.float32(inverse)
    return shifted


def _safe(targets_M: Tensor | None, ignore_index: int) -> np.ndarray:
    """Targets that can be used as an index; ignored rows are overwritten later."""
    assert targets_M is not None
    targets = targets_M.cpu().numpy()
    safe: np.ndarray = np.where(targets == ignore_index, 0, targets)
    return safe


def _float32(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy()
