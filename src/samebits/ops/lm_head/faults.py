"""Planted faults of a language model's head: each breaks one promise, and the check of that promise must say so."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from samebits.native.launch_numbers import forced
from samebits.ops.lm_head import lm_head
from samebits.ops.lm_head.check import tied_gradient

_calls = itertools.count()


def _reversed(hidden: Tensor, weight: Tensor) -> Tensor:
    """The same logits with their chains run backwards: right within rounding, other bits."""
    return lm_head(hidden.flip(-1), weight.flip(-1))


def split_by_batch(hidden: Tensor, weight: Tensor) -> Tensor:
    """Breaks batch and chunk: more rows, another order."""
    return lm_head(hidden, weight) if hidden.shape[0] > 8 else _reversed(hidden, weight)


def other_order_every_time(hidden: Tensor, weight: Tensor) -> Tensor:
    """Breaks repeat: as atomics do."""
    return lm_head(hidden, weight) if next(_calls) % 2 else _reversed(hidden, weight)


def reads_its_neighbours(hidden: Tensor, weight: Tensor) -> Tensor:
    """Breaks padding: a NaN in one row reaches the others, as a missing mask lets it."""
    return lm_head(hidden, weight) + 0.0 * hidden.sum()


def tile_decides_order(hidden: Tensor, weight: Tensor) -> Tensor:
    """Breaks tile: a launch number that chooses where the sum is cut."""
    plain = forced("threads") in (None, 1) and forced("launch") is None
    return lm_head(hidden, weight) if plain else _reversed(hidden, weight)


def narrow_logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """Breaks accuracy: logits rounded to eight bits of significand, as a head in bfloat16 leaves them."""
    return lm_head(hidden, weight).bfloat16().float()


def two_halves(hidden: Tensor, weight: Tensor) -> Tensor:
    """Breaks order: as good a sum as any, but not the declared one."""
    half = hidden.shape[-1] // 2
    return lm_head(hidden[..., :half], weight[..., :half]) + lm_head(hidden[..., half:], weight[..., half:])


def other_order_on_cuda(hidden: Tensor, weight: Tensor) -> Tensor:
    """Breaks device: the accelerator runs the chains backwards."""
    return _reversed(hidden, weight) if hidden.is_cuda else lm_head(hidden, weight)


class _LosesRows(torch.autograd.Function):
    """Logits whose weight gradient is rounded after every 16 rows, as accumulation in a narrow gradient does."""

    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(hidden, weight)
        return lm_head(hidden, weight).detach()

    @staticmethod
    def backward(ctx, dlogits: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
        hidden, weight = ctx.saved_tensors
        dz, dweight = dlogits.to(hidden.dtype), torch.zeros_like(weight)
        for start in range(0, hidden.shape[0], 16):
            rows = slice(start, start + 16)
            dweight = dweight + (dz[rows].T @ hidden[rows]).bfloat16().to(dweight.dtype)
        return dz @ weight, dweight


def rounds_between_micro_batches(hidden: Tensor, weight: Tensor) -> Tensor:
    """Breaks micro: the gradient is not the chain that can be resumed."""
    return _LosesRows.apply(hidden, weight)  # type: ignore[no-any-return, no-untyped-call]


def transposed_layout(hidden: Tensor, weight: Tensor) -> Tensor:
    """Breaks the tie: a table that does not lie by rows is read as if it did."""
    by_rows = weight if weight.is_contiguous() else weight.T.contiguous().reshape(weight.shape)
    return lm_head(hidden, by_rows)


def takes_either_layout(hidden: Tensor, weight: Tensor) -> Tensor:
    """Accepts bad input: a table [K, V] is turned round without a word."""
    turned = weight.dim() == 2 and weight.shape[1] != hidden.shape[-1] and weight.shape[0] == hidden.shape[-1]
    return lm_head(hidden, weight.T if turned else weight)


def head_part_only(hidden: Tensor, dlogits: Tensor, ids: Tensor, dembedding: Tensor) -> Tensor:
    """Breaks the tied gradient: the embedding's part is never added."""
    return tied_gradient(hidden, dlogits, ids, torch.zeros_like(dembedding))


def separate_tables(hidden: Tensor, dlogits: Tensor, ids: Tensor, dembedding: Tensor) -> Tensor:
    """Breaks the tied gradient: the embedding's part replaces the head's, as two parameters of one name do."""
    return tied_gradient(torch.zeros_like(hidden), dlogits, ids, dembedding)
