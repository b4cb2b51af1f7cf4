"""Planted faults of sampling: each breaks one promise, and the check of that promise must say so."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from samebits.native.launch_numbers import forced
from samebits.ops.sample import sample
from samebits.ops.sample.check import SEED, draw_by_request

_calls = itertools.count()


def draws_from_a_state(logits: Tensor, requests: Tensor, positions: Tensor) -> Tensor:
    """Breaks repeat: a generator that moves on with every call."""
    return draw_by_request(logits, requests, positions, seed=SEED + next(_calls))


def counts_by_row(logits: Tensor, requests: Tensor, positions: Tensor) -> Tensor:
    """Breaks batch, chunk and padding: the place in the batch is in the counter."""
    return draw_by_request(logits, requests, positions + torch.arange(len(positions), device=positions.device))


def one_maximum_for_all_rows(logits: Tensor, requests: Tensor, positions: Tensor) -> Tensor:
    """Breaks padding: the maximum of the whole batch is subtracted, so a NaN in one row reaches the others."""
    return draw_by_request(logits - logits.amax(), requests, positions)


def threads_share_a_seed(logits: Tensor, requests: Tensor, positions: Tensor) -> Tensor:
    """Breaks tile: a launch number reaches the key."""
    plain = forced("threads") in (None, 1) and forced("launch") is None
    return draw_by_request(logits, requests, positions, seed=SEED if plain else SEED + 1)


def five_candidates(logits: Tensor, requests: Tensor, positions: Tensor) -> Tensor:
    """Breaks accuracy: the five largest stay whatever was asked for, as in a list of candidates of fixed length."""
    kept = torch.zeros_like(logits, dtype=torch.bool)
    kept.scatter_(1, logits.topk(min(5, logits.shape[1])).indices, True)
    return draw_by_request(logits.masked_fill(~kept, -torch.inf), requests, positions)


def other_words_on_cuda(logits: Tensor, requests: Tensor, positions: Tensor) -> Tensor:
    """Breaks device: the accelerator has a generator of its own."""
    return draw_by_request(logits, requests, positions, seed=SEED + logits.is_cuda)


def last_of_equals(logits: Tensor, requests: Tensor, positions: Tensor, *, seed: int = SEED) -> Tensor:
    """Breaks greedy: of equal logits the last is taken."""
    drawn = draw_by_request(logits.flip(-1), requests, positions, seed=seed)
    return torch.where(drawn < 0, drawn, logits.shape[1] - 1 - drawn)


def keeps_everything(logits: Tensor, requests: Tensor, positions: Tensor, *, seed: int = SEED) -> Tensor:
    """Breaks top_k and top_p: both are read and neither is used."""
    return sample(logits, seed=seed, requests=requests, positions=positions, temperature=1.5)


def infinities_become_numbers(logits: Tensor, requests: Tensor, positions: Tensor, *, seed: int = SEED) -> Tensor:
    """Breaks what is impossible: what is not finite is replaced before the draw."""
    return draw_by_request(logits.nan_to_num(0.0, 1.0, -1.0), requests, positions, seed=seed)


def forgets_the_position(logits: Tensor, requests: Tensor, positions: Tensor, *, seed: int = SEED) -> Tensor:
    """Breaks the frequencies: every position of a request draws the same words."""
    return draw_by_request(logits, requests, torch.zeros_like(positions), seed=seed)


def positions_wrap(logits: Tensor, requests: Tensor, positions: Tensor, *, seed: int = SEED) -> Tensor:
    """Accepts bad input: a negative position is taken modulo 2^32."""
    return draw_by_request(
        logits, requests, positions % 2**32 if not positions.is_floating_point() else positions, seed=seed
    )
