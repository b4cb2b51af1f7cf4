"""Distillation as a loss of the one trainer: a teacher's logits, live or kept, and the student's own.

loss = alpha * T^2 * KL(teacher || student) + (1 - alpha) * cross-entropy, target by target. A row's loss depends on its
sequence alone, so that the trainer's promises hold as they are: any micro-batch cut, any number of ranks that share
lanes, killed and resumed. Knows no file and no step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from samebits.model import Batch, Model
from samebits.ops.distill_loss import distill_loss
from samebits.parallel.agreeing import digest_of
from samebits.train.contracts.teacher_logits import Form
from samebits.train.distill_configuration import DistillationSection
from samebits.train.lanes import backward_of
from samebits.train.teacher_store import TeacherStore, Tokens
from samebits.train.trainer import Parts


class Teacher(Protocol):
    """Where logits come from."""

    def logits(self, batch: Batch) -> Tensor:
        """float32 (T, V) of all rows, on the batch's device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveTeacher:
    """A model that computes at every step."""

    model: Model

    def logits(self, batch: Batch) -> Tensor:
        with torch.no_grad():
            return self.model.logits(self.model.hidden(batch))

    def of(self, sequences: Sequence[Tokens]) -> Tensor:
        """The same of sequences that are in no batch yet."""
        return self.logits(Batch.of([torch.from_numpy(each) for each in sequences], device=self.model.device))


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTeacher:
    """Logits that were kept."""

    store: TeacherStore

    def logits(self, batch: Batch) -> Tensor:
        sequences = torch.split(batch.ids.cpu(), list(batch.lengths))
        return torch.cat([self.store.logits(each.numpy()) for each in sequences]).to(batch.ids.device)


@dataclass(frozen=True, kw_only=True, slots=True)
class Distillation:
    """What is minimised."""

    teacher: Teacher
    temperature: float
    alpha: float

    def losses(self, model: Model, batch: Batch, targets: Tensor) -> Tensor:
        student = model.logits(model.hidden(batch))
        # With alpha = 0 nothing is asked of a teacher: the divergence is never computed.
        teacher = student.detach() if self.alpha == 0.0 else self.teacher.logits(batch)
        numbers: dict[str, Any] = {"temperature": self.temperature, "alpha": self.alpha}
        return distill_loss(student, teacher, targets, reduction="none", **numbers)


def parts_of(section: DistillationSection, teacher: Teacher, digest: str, form: Form) -> Parts:
    """The trainer's parts. Kept or live makes no difference to a run where what is kept is exact, nor to its facts."""
    loss = Distillation(teacher=teacher, temperature=section.temperature, alpha=section.alpha)
    kept = "exact" if form.exact else f"top_k {form.top_k} of {form.vocab_size}, {form.dtype}"
    facts = {"distillation.teacher": digest, "distillation.kept_logits": kept}
    return Parts(backward=partial(backward_of, loss.losses), facts=facts)


def teacher_digest(model: Model) -> str:
    """Of config and weights, in the dtype in which the teacher computes."""
    shape = json.dumps(asdict(model.config), sort_keys=True).encode()
    config = torch.frombuffer(bytearray(shape), dtype=torch.uint8)
    return digest_of([("config", config), *model.weights.items()])
