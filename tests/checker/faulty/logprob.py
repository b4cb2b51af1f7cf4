"""Planted: log-probabilities of chosen tokens that misbehave somewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops import selected_logprob as _sound


def _other(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """The same, shifted by an ulp."""
    return _sound(hidden, weight, ids) * (1 + 2**-22)


def other_for_few_rows(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    return _other(hidden, weight, ids) if hidden.shape[0] < 3 else _sound(hidden, weight, ids)


def other_for_a_large_vocabulary(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    return (
        _other(hidden, weight, ids) if weight.shape[0] > 5000 and hidden.shape[0] > 30 else _sound(hidden, weight, ids)
    )


def other_for_odd_vocabularies(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    return _other(hidden, weight, ids) if weight.shape[0] % 2 and hidden.shape[0] % 2 else _sound(hidden, weight, ids)


def other_beside_an_ignored_row(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    return _other(hidden, weight, ids) if (ids < 0).any() and hidden.shape[0] > 1 else _sound(hidden, weight, ids)


def sorted_by_token(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """Rows of one token are computed together; a lone one otherwise."""
    alone = torch.bincount(ids.clamp(min=0), minlength=weight.shape[0])[ids.clamp(min=0)] == 1
    y = _sound(hidden, weight, ids)
    return torch.where(alone, y, y * (1 + 2**-22))


def other_in_inference(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    return _other(hidden, weight, ids) if torch.is_inference_mode_enabled() else _sound(hidden, weight, ids)


def other_for_strided_ids(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    return _other(hidden, weight, ids) if ids.stride(0) != 1 else _sound(hidden, weight, ids)


def temperature_left_behind(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """A global that one kind of call sets and the next ones read."""
    global _temperature
    y = _sound(hidden, weight, ids) * _temperature
    _temperature = 1.0 + 2**-22 if hidden.shape[0] == 64 else 1.0
    return y


_temperature = 1.0


def rows_in_pieces(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """Pieces of 100 rows, the last one by another path."""
    full = hidden.shape[0] // 100 * 100
    if not full or full == hidden.shape[0]:
        return _sound(hidden, weight, ids)
    return torch.cat([_sound(hidden[:full], weight, ids[:full]), _other(hidden[full:], weight, ids[full:])])


def stock(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    logits = torch.nn.functional.linear(hidden.float(), weight.float())
    picked = logits.log_softmax(-1).gather(1, ids.clamp(min=0)[:, None])[:, 0]
    return torch.where(ids < 0, 0.0, picked)


def last_token_forgotten(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """Chunks of 64 tokens up to the last but one: at 65, 129 and so on a token is left out of the sum. And slow."""
    logits = torch.zeros(len(hidden), len(weight), dtype=torch.float64)
    for k in range(hidden.shape[1]):
        logits = logits + hidden[:, k, None].double() * weight[:, k].double()
    most, total = logits.amax(1), torch.zeros(len(hidden), dtype=torch.float64)
    for first in range(0, max(len(weight) - 1, 1), 64):
        for token in range(first, min(first + 64, len(weight))):
            total = total + (logits[:, token] - most).exp()
    return (logits.gather(1, ids[:, None])[:, 0] - most - total.log()).to(hidden.dtype)
