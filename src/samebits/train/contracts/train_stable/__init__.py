"""A run of the trainer on one short text, with a log of what each step did; what stops the run is in it as no number.

The learning rate goes from its peak to zero over the steps, as the schedule has it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from samebits.model.contracts.small_model import SMALL, model_of
from samebits.train.configuration import (
    DataSection,
    ModelSection,
    MonitoringSection,
    OptimizerSection,
    TrainConfig,
    TrainingSection,
)
from samebits.train.data import Data
from samebits.train.trainer import OURS, Parts, Trainer
from samebits.train.watch import BreachError

MAX_NORM = 1.0
LOGGED = ("loss", "norm before clipping", "norm after clipping", "largest weight")
OPTIMIZER = OptimizerSection(beta2=0.95, weight_decay=0.1, max_grad_norm=MAX_NORM)


def trainer_of(text: Tensor, weights: Tensor, rate: float, steps: int, parts: Parts = OURS) -> Trainer:
    """One sequence, seen once a step: the text teaches next to nothing, which is waived."""
    targets = len(text) - 1
    data = Data(
        tokens=text.cpu().numpy().astype(np.uint32),
        starts=np.zeros(1, np.int64),
        targets=np.full(1, targets),
        vocabulary=SMALL.vocab_size,
        end=0,
    )
    config = TrainConfig(
        model=ModelSection(preset="tiny"),
        data=DataSection(max_length=targets),
        optimizer=replace(OPTIMIZER, lr=rate),
        training=TrainingSection(
            micro_batch_size=1,
            num_train_epochs=steps,
            max_repeats=steps,
            device=str(weights.device),
            waive=["CFG-OB6", "CFG-OB7"],
        ),
        monitoring=MonitoringSection(peak_flops=1.0, sample_steps=0),
    )
    return Trainer(config, model_of(weights), data, parts)


def training_log(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor, *, parts: Parts = OURS) -> Tensor:
    """(steps, 4) float64: loss, norm before and after clipping, largest weight, of each step.

    Where the trainer stopped the run, that step and all that would have followed are NaN."""
    trainer = trainer_of(text, weights, float(rate), int(steps), parts)
    log = torch.full((int(steps), len(LOGGED)), math.nan, dtype=torch.float64)
    for line in log:
        try:
            done = trainer.step()
        except BreachError:
            break
        line.copy_(torch.tensor([done.loss, done.norm, done.norm_after, _largest(trainer)], dtype=torch.float64))
    return log


def _largest(trainer: Trainer) -> float:
    return max(float(weight.abs().amax()) for weight in trainer.weights.values())
