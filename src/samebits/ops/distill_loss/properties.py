"""What a distillation loss must be, whatever it is built of: predicates that its contract names.

KL alone is the loss at alpha = 1, its softmaxes show in its gradient T (q - p)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference
from samebits.ops.distill_loss.check import IGNORE_INDEX, bounds
from samebits.ops.softmax import log_softmax

BITWISE: Final = Tolerance(kind="bitwise")
TEMPERATURES: Final = (1.0, 2.0, 4.0)
ALPHAS: Final = (0.0, 0.5, 1.0)
# Students of their own, and by how much of a logit others differ from the teacher's.
NEAR: Final = (None, 2.0**-7, 2.0**-12, 2.0**-20)
# So hot that a softmax is its first-order term: logits of at most 8 are 1/512 of it.
HOT, LARGEST = 4096.0, 8.0
# Rounding of logits up to this shows in the fifth digit of a softmax, not in the first.
ORDINARY = 64.0


def divergence_is_not_negative(call: Call, tolerance: Tolerance) -> str:
    """T^2 KL >= 0, of these distributions and of near ones, which rounding could put below it."""
    teacher = call.arguments["teacher_logits"]
    for temperature, part in itertools.product(call.some_of(TEMPERATURES), NEAR):
        student = call.arguments["student_logits"] if part is None else (teacher * (1 + part)).to(teacher.dtype)
        found = call.again(_weighing(temperature, 1.0), student_logits=student)
        below = found < 0
        if below.any():
            return f"T = {temperature}, student {'given' if part is None else part}: KL {float(found[below][0])}"
    return ""


def of_itself_is_zero(call: Call, tolerance: Tolerance) -> str:
    """KL(P || P) = 0 at every temperature, bit for bit."""
    student = _ordinary(call.arguments["student_logits"])
    for temperature in call.some_of(TEMPERATURES):
        found = call.again(_weighing(temperature, 1.0), student_logits=student, teacher_logits=student)
        wrong = difference(found, torch.zeros_like(found), tolerance, words=f"T = {temperature}, KL(P || P)")
        if wrong:
            return wrong
    return ""


def refuses_bad_input(call: Call, tolerance: Tolerance) -> str:
    """Temperatures that are not above 0, alphas outside 0 to 1, wrong dtypes, shapes and targets: one line each."""
    student, teacher, targets = call.arguments.values()
    numbers: list[dict[str, float]] = [{"temperature": each} for each in (0.0, -1.0, math.nan, math.inf)]
    numbers += [{"alpha": each} for each in (-0.5, 1.5, math.nan)]
    bad: dict[str, dict[str, Any]] = {
        "target -1": {"targets": torch.full_like(targets, -1)},
        "target V": {"targets": torch.full_like(targets, student.shape[1])},
        "targets of int16": {"targets": targets.to(torch.int16)},
        "a teacher with more tokens": {"teacher_logits": torch.cat([teacher, teacher], 1)},
        "a teacher of float64": {"teacher_logits": teacher.double()},
    }
    said = {str(options): call.refusal(options) for options in numbers}
    said |= {words: call.refusal(None, **changed) for words, changed in bad.items()}
    accepted = [words for words, text in said.items() if not text or "\n" in text]
    return f"{accepted[0]} is accepted, or not refused in one line" if accepted else ""


def ends_are_their_terms(call: Call, tolerance: Tolerance) -> str:
    """alpha = 0 is cross-entropy to the bit, even where KL is infinite; alpha = 1 is KL, whatever the targets."""
    student, teacher, targets = call.arguments.values()
    ignored, safe = targets == IGNORE_INDEX, targets.clamp(min=0)
    entropy = 0.0 - log_softmax(student.float()).gather(1, safe[:, None])[:, 0]
    entropy = torch.where(ignored, 0.0, entropy)
    finite = student.isfinite().all(-1)
    found = call.again(_weighing(2.0, 0.0))
    wrong = difference(found[finite], entropy[finite], tolerance, words="alpha = 0 against log_softmax")
    if wrong:
        return wrong
    if student.shape[1] > 1:
        # A token that the teacher gives weight and the student none, beside the target.
        other = (safe[:, None] + 1) % student.shape[1]
        impossible = _ordinary(student).scatter(1, other, -math.inf)
        loss = call.again(_weighing(1.0, 0.0), student_logits=impossible, teacher_logits=torch.zeros_like(teacher))
        if not loss.isfinite().all():
            return f"alpha = 0 where KL is infinite gives {float(loss[~loss.isfinite()][0])}"
    moved = torch.where(ignored, targets, (targets + 1) % student.shape[1])
    divergence = call.again(_weighing(2.0, 1.0))
    return difference(call.again(_weighing(2.0, 1.0), targets=moved), divergence, tolerance, words="other targets")


def half_is_the_mean_of_the_ends(call: Call, tolerance: Tolerance) -> str:
    """L(1/2) = (L(0) + L(1)) / 2, but for the roundings of two products and a sum."""
    for temperature in call.some_of(TEMPERATURES):
        ends = [call.again(_weighing(temperature, alpha)).double() for alpha in (0.0, 1.0)]
        allowed = 4 * 2.0**-24 * (ends[0].abs() + ends[1].abs()) + 2.0**-147
        found, mean = call.again(_weighing(temperature, 0.5)), (ends[0] + ends[1]) / 2
        known = mean.isfinite() & (mean.abs() < torch.finfo(torch.float32).max / 4)
        wrong = difference(found[known], mean[known], tolerance, allowed=allowed[known], words=f"T = {temperature}")
        if wrong:
            return wrong
    return ""


def matches_at_every_weighing(call: Call, tolerance: Tolerance) -> str:
    """Loss and gradient against float64: T in 1, 2, 4 and alpha in 0, 1/2, 1; T (q - p) is the gradient of T^2 KL."""
    for temperature, alpha in call.some_of(list(itertools.product(TEMPERATURES, ALPHAS))):
        options, wanted = _weighing(temperature, alpha), _bounds(call, temperature, alpha)
        found = {"output": call.again(options), **call.gradients(wanted=["student_logits"], options=options)}
        for name, each in wanted.items():
            words = f"T = {temperature}, alpha = {alpha}, {name}"
            wrong = difference(found[name].cpu(), each.exact, tolerance, allowed=each.allowed, words=words)
            if wrong:
                return wrong
    return ""


def softmaxes_flatten(call: Call, tolerance: Tolerance) -> str:
    """max - min of softmax(z / T) <= (e^(R / T) - 1) / V, student's and teacher's; rows of q - p sum to 0."""
    for temperature in call.some_of((*TEMPERATURES, 1000.0)):
        for words, share in _softmaxes(call, temperature):
            z = _ordinary(call.arguments[words]).double().cpu()
            kept = call.arguments["targets"].cpu() != IGNORE_INDEX
            allowed = torch.expm1((z.amax(-1) - z.amin(-1)) / temperature) / z.shape[1]
            slack = _slack(call, z.shape[1])
            spread = share.amax(-1) - share.amin(-1)
            beyond = kept & ~(spread <= allowed * (1 + slack) + slack)
            if beyond.any():
                at = f"spread {float(spread[beyond][0]):.3g}, allowed {float(allowed[beyond][0]):.3g}"
                return f"T = {temperature}, softmax of {words}: {at}"
            if not bool((share[kept].sum(-1).abs() <= slack * z.shape[1]).all()):
                return f"T = {temperature}: a row of q - p does not sum to 0"
    return ""


def hot_gradient_is_the_difference_of_logits(call: Call, tolerance: Tolerance) -> str:
    """For T far above the logits T^2 KL has the gradient ((s - mean s) - (t - mean t)) / V.

    With h = max |z| / T the first-order term of a softmax misses by 4 h^2 / V at most; T times two of these."""
    logits = {
        name: _ordinary(call.arguments[name]).clamp(-LARGEST, LARGEST) for name in ("student_logits", "teacher_logits")
    }
    found = call.gradients(wanted=["student_logits"], options=_weighing(HOT, 1.0), **logits)["student_logits"].cpu()
    student, teacher = (each.double().cpu() for each in logits.values())
    wanted = ((student - student.mean(-1, keepdim=True)) - (teacher - teacher.mean(-1, keepdim=True))) / student.shape[
        1
    ]
    kept = call.arguments["targets"].cpu() != IGNORE_INDEX
    rounding = _bounds(call, HOT, 1.0, **logits)["student_logits"].allowed
    allowed = rounding + 8 * LARGEST**2 / HOT / student.shape[1]
    return difference(found[kept], wanted[kept], tolerance, allowed=allowed[kept], words=f"gradient at T = {HOT}")


def _weighing(temperature: float, alpha: float) -> dict[str, float]:
    return {"temperature": temperature, "alpha": alpha}


def _ordinary(logits: Tensor) -> Tensor:
    return logits.nan_to_num().clamp(-ORDINARY, ORDINARY)


def _bounds(call: Call, temperature: float, alpha: float, **changed: Tensor) -> dict[str, Any]:
    given = {name: value.cpu() for name, value in {**call.arguments, **changed}.items()}
    return bounds(given, torch.ones(len(given["targets"])), lambda terms: call.sum_error(terms), temperature, alpha)


def _softmaxes(call: Call, temperature: float) -> Iterator[tuple[str, Tensor]]:
    """q - 1/V beside a flat teacher, and 1/V - p beside a flat student: each softmax as the gradient shows it."""
    for name, flat in (("student_logits", "teacher_logits"), ("teacher_logits", "student_logits")):
        given = {name: _ordinary(call.arguments[name]), flat: torch.zeros_like(call.arguments[flat])}
        gradient = call.gradients(wanted=["student_logits"], options=_weighing(temperature, 1.0), **given)
        yield name, gradient["student_logits"].double().cpu() / temperature


def _slack(call: Call, vocabulary: int) -> float:
    """Sum, exponential, reciprocal, product and difference in float32, and the gradient's own format."""
    unit = torch.finfo(call.arguments["student_logits"].dtype).eps / 2
    return call.sum_error(vocabulary) + 16 * 2.0**-24 + 2 * unit + 4 * ORDINARY * 2.0**-24
