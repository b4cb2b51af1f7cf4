"""Planted faults of an optimizer's start: buffers that were never written."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits.train.contracts.gpu_init import first_moments


def _nothing_zeroed(parameter: Tensor) -> dict[str, Any]:
    return {"step": 0, "exp_avg": torch.empty_like(parameter), "exp_avg_sq": torch.empty_like(parameter)}


def _first_zeroed(parameter: Tensor) -> dict[str, Any]:
    return {"step": 0, "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.empty_like(parameter)}


def empty_for_zeros(param: Tensor) -> Tensor:
    """Memory is asked for and taken as it comes."""
    return first_moments(param, fresh=_nothing_zeroed)


def only_the_first_moment(param: Tensor) -> Tensor:
    """One of the two buffers is cleared."""
    return first_moments(param, fresh=_first_zeroed)
