"""A trainer of the small model on a few short sequences, each with its own number of targets.

Knows no promise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from samebits.model.contracts.small_model import SMALL, make_text, model_of, seed_of
from samebits.model.contracts.specs import fractions
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

MAX_NORM = 1.0
OPTIMIZER = OptimizerSection(beta2=0.95, weight_decay=0.1, max_grad_norm=MAX_NORM, min_lr_ratio=0.1)


def make_texts(sequences: int, tokens: int, seed: int) -> dict[str, Tensor]:
    """Rows of one token more than a sequence has targets at the most, and how many it has."""
    rows = [make_text(tokens + 1, 64 * seed + place) for place in range(sequences)]
    drawn = fractions((sequences,), 3 * seed_of(seed, tokens) + 2)
    return {"text": torch.stack(rows), "counts": torch.from_numpy(1 + (drawn * tokens).astype(np.int64))}


def data_of(text: Tensor, counts: Tensor) -> Data:
    """The rows as data: the first targets of each, as many as it has."""
    rows, width = text.shape
    return Data(
        tokens=text.numpy().astype(np.uint32).reshape(-1),
        starts=np.arange(rows, dtype=np.int64) * width,
        targets=counts.numpy(),
        vocabulary=SMALL.vocab_size,
        end=0,
    )


def config_of(
    batch: int,
    micro: int,
    rate: float,
    steps: int,
    *,
    width: int,
    seed: int = 42,
    device: str = "cpu",
    waive: Sequence[str] = ("CFG-OB6", "CFG-OB7"),
) -> TrainConfig:
    """A run whose global batch is cut into passes of `micro` sequences. The text teaches nothing, which is waived."""
    return TrainConfig(
        model=ModelSection(preset="tiny"),
        data=DataSection(max_length=width),
        optimizer=replace(OPTIMIZER, lr=rate),
        training=TrainingSection(
            micro_batch_size=micro,
            gradient_accumulation_steps=batch // micro,
            num_train_epochs=steps,
            max_steps=steps,
            max_repeats=steps,
            seed=seed,
            device=device,
            waive=list(waive),
        ),
        monitoring=MonitoringSection(peak_flops=1.0, sample_steps=0),
    )


def trainer_of(config: TrainConfig, text: Tensor, counts: Tensor, weights: Tensor, parts: Parts = OURS) -> Trainer:
    """The run that the configuration says, on these rows, from these weights."""
    return Trainer(config, model_of(weights), data_of(text, counts), parts)
