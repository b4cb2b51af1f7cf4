"""Planted faults of a configured optimizer: numbers that are left out, ignored, or come a step late."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits.train.contracts.hyperparams import COLUMNS, applied

DEFAULT_BETA2 = 0.999
DEFAULT_EPS = 1e-8


def _with_column(config: Tensor, name: str, value: float) -> Tensor:
    changed = config.clone()
    changed[:, COLUMNS.index(name)] = value
    return changed


def defaults_constructor(config: Tensor, param: Tensor, grads: Tensor, **options: Any) -> Tensor:
    """The optimizer is built by a constructor that knows no beta2: its default is in force."""
    return applied(_with_column(config, "beta2", DEFAULT_BETA2), param, grads, **options)


def ignores_the_decay(config: Tensor, param: Tensor, grads: Tensor, **options: Any) -> Tensor:
    """The configuration's weight decay is read by nobody."""
    return applied(_with_column(config, "weight_decay", 0.0), param, grads, **options)


def ignores_eps(config: Tensor, param: Tensor, grads: Tensor, **options: Any) -> Tensor:
    """The configuration's eps is read by nobody."""
    return applied(_with_column(config, "eps", DEFAULT_EPS), param, grads, **options)


def rate_of_the_step_before(config: Tensor, param: Tensor, grads: Tensor, **options: Any) -> Tensor:
    """The schedule is advanced after the step instead of before it."""
    first, rates = config[:, : len(COLUMNS) + 1], config[:, len(COLUMNS) : -1]
    return applied(torch.cat([first, rates], 1), param, grads, **options)


def takes_any_option(config: Tensor, param: Tensor, grads: Tensor, **options: Any) -> Tensor:
    """Options that nothing reads are swallowed."""
    return applied(config, param, grads)
