"""Planted faults of cross-entropy: each breaks one promise, and the check of that promise must say so.

Those of order are the faults of the log-probabilities underneath, seen through the loss."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from samebits.ops.cross_entropy import linear_cross_entropy
from samebits.ops.logprob import faults as logprob
from samebits.ops.logprob.check import IGNORED

Reduction: TypeAlias = Literal["mean", "sum", "none"]


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


def _answer(losses: Tensor, targets: Tensor, reduction: str, denominator: float | None) -> Tensor:
    """Losses of rows as the reduction wants them; ignored rows are 0."""
    kept = targets != IGNORED
    losses = torch.where(kept, losses, 0.0)
    if reduction == "none":
        return losses
    return losses.sum() / (1.0 if reduction == "sum" else denominator or kept.sum())


def _own(logits: Tensor, targets: Tensor) -> Tensor:
    return logits.gather(1, targets.clamp(min=0)[:, None])[:, 0]


def forgets_the_maximum(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, reduction: str = "none", denominator: float | None = None
) -> Tensor:
    """Breaks what is exact: exponentials overflow and vanish."""
    logits = hidden.float() @ weight.float().T
    return _answer(logits.exp().sum(-1).log() - _own(logits, targets), targets, reduction, denominator)


def loses_the_last_tile(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, reduction: str = "none", denominator: float | None = None
) -> Tensor:
    """Breaks the sum: tokens past the last whole tile of 16 are left out of it."""
    logits = hidden.float() @ weight.float().T
    kept = logits[:, : logits.shape[1] // 16 * 16]
    return _answer(kept.logsumexp(-1) - _own(logits, targets), targets, reduction, denominator)


def sign_flipped(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, reduction: Reduction = "none", denominator: float | None = None
) -> Tensor:
    """Breaks the sign: the log-probability is handed out for the loss."""
    return -linear_cross_entropy(hidden, weight, targets, reduction=reduction, denominator=denominator)


def target_shifted(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, reduction: Reduction = "none", denominator: float | None = None
) -> Tensor:
    """Breaks the target: every row is asked for the token after its own."""
    shifted = torch.where(targets == IGNORED, targets, (targets + 1) % weight.shape[0])
    return linear_cross_entropy(hidden, weight, shifted, reduction=reduction, denominator=denominator)


def nan_becomes_zero(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, reduction: Reduction = "none", denominator: float | None = None
) -> Tensor:
    """Breaks what a NaN says: a loss that is not finite is reported as 0."""
    losses = linear_cross_entropy(hidden, weight, targets, reduction=reduction, denominator=denominator)
    return torch.where(losses.isfinite(), losses, 0.0)


def negative_targets_wrap(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, reduction: Reduction = "none", denominator: float | None = None
) -> Tensor:
    """Accepts bad input: -1 is taken for the last token, as an index counts from the end."""
    wrapped = torch.where((targets < 0) & (targets != IGNORED), targets % weight.shape[0], targets)
    return linear_cross_entropy(hidden, weight, wrapped, reduction=reduction, denominator=denominator)


def ignored_rows_counted(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, reduction: Reduction = "none", denominator: float | None = None
) -> Tensor:
    """Breaks the mean: the sum is divided by all rows, ignored ones too."""
    rows = float(len(targets)) if reduction == "mean" else None
    return linear_cross_entropy(hidden, weight, targets, reduction=reduction, denominator=denominator or rows)


def sums_in_sixteen_bits(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, reduction: str = "none", denominator: float | None = None
) -> Tensor:
    """Breaks accuracy: the sum of exponentials is rounded to bfloat16 after every block of 8."""
    logits = hidden.float() @ weight.float().T
    most, total = logits.amax(-1, keepdim=True), torch.zeros(len(hidden), dtype=torch.bfloat16, device=hidden.device)
    for some in torch.chunk((logits - most).exp(), -(-logits.shape[1] // 8), 1):
        total = total + some.sum(-1).bfloat16()
    return _answer(total.float().log() + most[:, 0] - _own(logits, targets), targets, reduction, denominator)


class _GradientOfTheLogits(torch.autograd.Function):
    """A loss whose gradient leaves the target out: softmax, not softmax less onehot."""

    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(hidden, weight)
        return linear_cross_entropy(hidden, weight, targets, reduction="none").detach()

    @staticmethod
    def backward(ctx, dloss: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[no-untyped-def]
        hidden, weight = (each.float() for each in ctx.saved_tensors)
        dz = dloss[:, None] * (hidden @ weight.T).softmax(-1)
        dtype = ctx.saved_tensors[0].dtype
        return (dz @ weight).to(dtype), (dz.T @ hidden).to(dtype), None


def gradient_without_the_target(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Breaks accuracy of the gradient alone: the loss is right to the bit."""
    return _GradientOfTheLogits.apply(hidden, weight, targets)  # type: ignore[no-any-return, no-untyped-call]
