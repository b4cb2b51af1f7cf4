"""Planted faults of log-probabilities: each breaks one promise, and the check of that promise must say so."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from samebits.native.launch_numbers import forced
from samebits.ops.logprob import selected_logprob
from samebits.ops.logprob.check import IGNORED

_calls = itertools.count()


def _reversed(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """The same logits with their chains run backwards: right within rounding, other bits."""
    return selected_logprob(hidden.flip(-1), weight.flip(-1), ids)


def split_by_batch(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """Breaks batch and chunk: more rows, another order."""
    return selected_logprob(hidden, weight, ids) if hidden.shape[0] > 8 else _reversed(hidden, weight, ids)


def other_order_every_time(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """Breaks repeat: as atomics do."""
    return selected_logprob(hidden, weight, ids) if next(_calls) % 2 else _reversed(hidden, weight, ids)


def reads_its_neighbours(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """Breaks padding: a NaN in one row reaches the others, as a missing mask lets it."""
    return selected_logprob(hidden, weight, ids) + 0.0 * hidden.sum()


def tile_decides_order(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """Breaks tile: a launch number that chooses where the sum is cut."""
    plain = forced("threads") in (None, 1) and forced("launch") is None
    return selected_logprob(hidden, weight, ids) if plain else _reversed(hidden, weight, ids)


def other_order_on_cuda(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """Breaks device: the accelerator runs the chains backwards."""
    return _reversed(hidden, weight, ids) if hidden.is_cuda else selected_logprob(hidden, weight, ids)


def narrow_logits(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """Breaks accuracy: logits rounded to eight bits of significand, as a head in bfloat16 leaves them."""
    logprobs = (hidden @ weight.T).bfloat16().float().log_softmax(-1)
    ignored = ids == -100
    return logprobs.gather(1, ids.masked_fill(ignored, 0)[:, None])[:, 0].masked_fill(ignored, 0.0)


class _LosesRows(torch.autograd.Function):
    """Log-probabilities whose weight gradient is rounded after every 16 rows, as a narrow gradient does."""

    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(hidden, weight, ids)
        return selected_logprob(hidden, weight, ids).detach()

    @staticmethod
    def backward(ctx, dlogprob: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[no-untyped-def]
        hidden, weight, ids = ctx.saved_tensors
        own = torch.nn.functional.one_hot(ids.clamp(min=0), weight.shape[0])
        dz = dlogprob[:, None] * (own - (hidden @ weight.T).float().softmax(-1))
        dweight = torch.zeros_like(weight)
        for start in range(0, hidden.shape[0], 16):
            rows = slice(start, start + 16)
            dweight = dweight + (dz[rows].T @ hidden[rows].float()).bfloat16().to(dweight.dtype)
        return torch.zeros_like(hidden), dweight, None


def rounds_between_micro_batches(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """Breaks micro: the gradient is not the chain that can be resumed."""
    return _LosesRows.apply(hidden, weight, ids)  # type: ignore[no-any-return, no-untyped-call]


def _gathered(logprobs: Tensor, ids: Tensor) -> Tensor:
    return torch.where(ids == IGNORED, 0.0, logprobs.gather(-1, ids.clamp(min=0)[..., None])[..., 0])


def forgets_the_maximum(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """Breaks what is exact: exponentials overflow and vanish, and the sum is rounded below its largest term."""
    logits = hidden.float() @ weight.float().T
    total = logits.exp().sum(-1, keepdim=True).bfloat16().float()
    return _gathered(logits - total.log(), ids)


def token_shifted(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """Breaks the token: every row is asked for the one after its own."""
    return selected_logprob(hidden, weight, torch.where(ids == IGNORED, ids, (ids + 1) % weight.shape[0]))


def loses_the_last_tile(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """Breaks the sum: tokens past the last whole tile of 16 are left out of it."""
    logits = hidden.float() @ weight.float().T
    return _gathered(logits - logits[..., : logits.shape[-1] // 16 * 16].logsumexp(-1, keepdim=True), ids)


def narrow_when_alone(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """Breaks sampler and trainer: a row alone, as the sampler asks, has its logits rounded to bfloat16."""
    if ids.numel() > 1:
        return selected_logprob(hidden, weight, ids)
    return _gathered((hidden.float() @ weight.float().T).bfloat16().float().log_softmax(-1), ids)


def mask_ignored(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """Breaks the mask: a masked position is scored as token 0."""
    return selected_logprob(hidden, weight, ids.masked_fill(ids == IGNORED, 0))


def negative_ids_wrap(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """Accepts bad input: -1 is taken for the last token, as an index counts from the end."""
    return selected_logprob(hidden, weight, torch.where((ids < 0) & (ids != IGNORED), ids % weight.shape[0], ids))


class _OnlyTheTarget(torch.autograd.Function):
    """Log-probabilities whose gradient is that of the token's logit alone: onehot, not onehot less softmax."""

    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(hidden, weight, ids)
        return selected_logprob(hidden, weight, ids).detach()

    @staticmethod
    def backward(ctx, dlogprob: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[no-untyped-def]
        hidden, weight, ids = ctx.saved_tensors
        dz = dlogprob[:, None] * torch.nn.functional.one_hot(ids.clamp(min=0), weight.shape[0])
        return (dz @ weight.float()).to(hidden.dtype), (dz.T @ hidden.float()).to(weight.dtype), None


def gradient_without_the_softmax(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """Breaks the gradient alone: the value is right to the bit."""
    return _OnlyTheTarget.apply(hidden, weight, ids)  # type: ignore[no-any-return, no-untyped-call]
