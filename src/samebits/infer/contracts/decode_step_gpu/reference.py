"""What the step for Hopper stands for: the model's own pass, captured."""

from __future__ import annotations

from torch import Tensor

from samebits.infer.chosen_step import PLAIN
from samebits.infer.contracts.decode_step_gpu import decoded


def plain(ids: Tensor, held: Tensor, kept: Tensor, weights: Tensor) -> Tensor:
    """The same logits, keys and values, by the operators' launches one after another."""
    return decoded(ids, held, kept, weights, kind=PLAIN)
