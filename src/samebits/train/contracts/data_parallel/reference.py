"""The same without ranks: the trainer alone on the global batch, the mean in float64, every sum at its end."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.model.contracts.small_model import model_of
from samebits.train.contracts.data_parallel import config, log_of
from samebits.train.contracts.small_run import data_of
from samebits.train.trainer import Trainer


def one_worker(text: Tensor, counts: Tensor, weights: Tensor, rate: Tensor, size: Tensor, poisoned: Tensor) -> Tensor:
    """(steps, 1 + P): the log of one worker; how many ranks there are has no say."""
    return log_of(Trainer(config(text, rate), model_of(weights), data_of(text, counts)))


def mean64(parts_ND: Tensor, counts_N: Tensor) -> Tensor:
    """(D,): the mean over all targets."""
    return (parts_ND.double() * counts_N.double()[:, None]).sum(0) / int(counts_N.sum())


def all_of_them(parts_ND: Tensor, times: Tensor) -> Tensor:
    """(ranks,): each sum ends on each rank."""
    return torch.full((len(parts_ND),), int(times))
