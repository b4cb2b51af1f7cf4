"""Planted faults of cross-entropy: each breaks one promise, and the check of that promise must say so.

They are those of the log-probabilities underneath, seen through the loss."""

from __future__ import annotations

from torch import Tensor

from samebits.ops.logprob import faults as logprob


def other_order_every_time(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Breaks repeat: as atomics do."""
    return 0.0 - logprob.other_order_every_time(hidden, weight, targets)


def split_by_batch(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Breaks batch and chunk: more rows, another order."""
    return 0.0 - logprob.split_by_batch(hidden, weight, targets)


def reads_its_neighbours(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Breaks padding: a NaN in one row reaches the others, as a missing mask lets it."""
    return 0.0 - logprob.reads_its_neighbours(hidden, weight, targets)


def rounds_between_micro_batches(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Breaks micro: the gradient is not the chain that can be resumed."""
    return 0.0 - logprob.rounds_between_micro_batches(hidden, weight, targets)


def tile_decides_order(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Breaks tile: a launch number that chooses where the sum is cut."""
    return 0.0 - logprob.tile_decides_order(hidden, weight, targets)


def narrow_logits(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Breaks accuracy: logits rounded to eight bits of significand, as a head in bfloat16 leaves them."""
    return 0.0 - logprob.narrow_logits(hidden, weight, targets)


def other_order_on_cuda(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Breaks device: the accelerator runs the chains backwards."""
    return 0.0 - logprob.other_order_on_cuda(hidden, weight, targets)
