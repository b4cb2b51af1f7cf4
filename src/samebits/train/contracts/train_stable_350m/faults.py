"""A planted fault of a long run: nothing is clipped."""

from __future__ import annotations

from torch import Tensor

from samebits.train.contracts.train_stable_350m import training_log
from samebits.train.trainer import Parts


def _not_clipped(gradients: list[Tensor], norm: Tensor, max_norm: float) -> None:
    return None


def without_clipping(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor) -> Tensor:
    """Gradients reach the optimizer as large as they are."""
    return training_log(text, weights, rate, steps, parts=Parts(clip=_not_clipped))
