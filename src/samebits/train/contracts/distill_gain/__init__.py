"""Whether a teacher helps: the same students with and without one, on text that nobody saw.

The teacher is trained here on all rows of a text, a student on the first of them; both are the small model. Losses are
those of other rows of the same language."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from samebits.model import Batch, Model
from samebits.model.contracts.small_model import SMALL
from samebits.train.contracts.small_run import config_of, trainer_of
from samebits.train.contracts.teacher_logits import Form
from samebits.train.distill import LiveTeacher, Teacher, parts_of, teacher_digest
from samebits.train.distill_configuration import DistillationSection
from samebits.train.trainer import OURS, Parts

BATCH: Final = 4
RATE: Final = 2.0**-6
WARMUP: Final = 4
TEACHER_STEPS: Final = 60
# A student learns from one row of so many.
SHARE: Final = 8
SECTION: Final = DistillationSection(teacher_model_name_or_path="", temperature=1.0, alpha=0.9)


def trained(text: Tensor, weights: Tensor, steps: int, parts: Parts = OURS) -> Model:
    """The model after so many steps on these rows, each with all its targets."""
    rows, width = len(text), text.shape[1] - 1
    config = config_of(BATCH, BATCH, RATE, steps, width=width)
    config = replace(config, optimizer=replace(config.optimizer, warmup_steps=WARMUP))
    trainer = trainer_of(config, text, torch.full((rows,), width), weights, parts)
    for _ in range(steps):
        trainer.step()
    return Model(config=SMALL, weights=trainer.weights)


def loss_on(model: Model, text: Tensor) -> float:
    """The mean loss of all targets of these rows."""
    with torch.no_grad():
        hidden = model.hidden(Batch.of(list(text[:, :-1])))
        losses = -model.logprobs(hidden, text[:, 1:].reshape(-1))
    return math.fsum(losses.tolist()) / losses.numel()


def held_out_losses(
    text: Tensor, held: Tensor, weights: Tensor, steps: Tensor, *, seen_as: Callable[[Teacher], Teacher] = lambda x: x
) -> Tensor:
    """(2, students) float64: without a teacher, and with one. The first weights are the teacher's.

    `seen_as` is what stands between a teacher and its students."""
    teacher = trained(text, weights[0], TEACHER_STEPS)
    form = Form(vocab_size=SMALL.vocab_size, temperature=SECTION.temperature)
    parts = parts_of(SECTION, seen_as(LiveTeacher(model=teacher)), teacher_digest(teacher), form)
    own = text[: len(text) // SHARE]
    found = [[loss_on(trained(own, each, int(steps), way), held) for each in weights[1:]] for way in (OURS, parts)]
    return torch.tensor(found, dtype=torch.float64)
