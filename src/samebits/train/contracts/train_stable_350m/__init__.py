"""A run of the preset of 350 million weights from random ones, 24 layers at full width, with a log of every step.

What stops the run is in the log as no number. Knows no kernel."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import torch
from torch import Tensor

from samebits.model import Model
from samebits.model.presets import PRESETS
from samebits.model.weights import shapes
from samebits.train.contracts.small_run import MAX_NORM, config_of
from samebits.train.data import Data
from samebits.train.trainer import OURS, Parts, Trainer
from samebits.train.watch import BreachError

CONFIG: Final = PRESETS["350m"]
SHAPES: Final = shapes(CONFIG)
LOGGED: Final = ("loss", "norm before clipping", "norm after clipping")

__all__ = ["CONFIG", "LOGGED", "MAX_NORM", "SHAPES", "run_of", "training_log"]


def cut(weights: Tensor) -> dict[str, Tensor]:
    """The tensors of the model by name."""
    pieces = torch.split(weights, [math.prod(shape) for shape in SHAPES.values()])
    return {name: piece.reshape(shape) for (name, shape), piece in zip(SHAPES.items(), pieces, strict=True)}


def run_of(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor, parts: Parts = OURS) -> Trainer:
    """One sequence, seen once a step."""
    targets = len(text) - 1
    data = Data(
        tokens=text.cpu().numpy().astype(np.uint32),
        starts=np.zeros(1, dtype=np.int64),
        targets=np.array([targets]),
        vocabulary=CONFIG.vocab_size,
        end=0,
    )
    config = config_of(1, 1, float(rate), int(steps), width=targets, device=str(weights.device))
    return Trainer(config, Model(config=CONFIG, weights=cut(weights)), data, parts)


def training_log(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor, *, parts: Parts = OURS) -> Tensor:
    """(steps, 3) float64: loss, norm before and after clipping, of each step.

    Where the trainer stopped the run, that step and all that would have followed are NaN."""
    trainer = run_of(text, weights, rate, steps, parts)
    log = torch.full((int(steps), len(LOGGED)), math.nan, dtype=torch.float64)
    for line in log:
        try:
            done = trainer.step()
        except BreachError:
            break
        line.copy_(torch.tensor([done.loss, done.norm, done.norm_after], dtype=torch.float64))
    return log
