"""Planted faults of a tokenizer: rules that are corrupted, a byte unknown, another order, sentinels in pieces."""

from __future__ import annotations

from itertools import count

import torch
from torch import Tensor

from samebits.model.contracts.bpe_tokenizer import BYTES, encoded, padded, returned, rows_of, tokenizer_of, trained
from samebits.model.contracts.bpe_tokenizer.reference import encoded64

UNKNOWN = ord("?")
UNHEARD_OF = 0x7F
_calls = count()


def _corrupted(rules: Tensor) -> Tensor:
    """Every second rule takes another right part: whichever of them a text needs, one is wrong."""
    changed = rules.clone()
    changed[::2, 1] = (changed[::2, 1] + 1) % BYTES
    return changed


def rules_corrupted_for_decoding(data: Tensor, rules: Tensor) -> Tensor:
    """Ids are looked up in a table in which merges went wrong."""
    writing, reading = tokenizer_of(rules), tokenizer_of(_corrupted(rules))
    return padded(reading.decode(writing.encode(each)) for each in rows_of(data))


def text_is_repaired(data: Tensor, rules: Tensor) -> Tensor:
    """What is no UTF-8 becomes the sign for it."""
    repaired = [each.decode("utf-8", "replace").encode() for each in rows_of(data)]
    return returned(padded(repaired), rules)


def a_byte_is_unknown(data: Tensor, rules: Tensor, *, special: bool = True) -> Tensor:
    """One byte has no token of its own and becomes the unknown one."""
    return encoded(torch.where(data == UNHEARD_OF, UNKNOWN, data), rules, special=special)


def rules_corrupted(data: Tensor, rules: Tensor, *, special: bool = True) -> Tensor:
    """Merge rules are other ones."""
    return encoded(data, _corrupted(rules), special=special)


def rightmost_first(data: Tensor, rules: Tensor, *, special: bool = True) -> Tensor:
    """Of equal pairs the last is merged first."""
    return encoded64(data, rules, special=special, last=True)


def rules_in_no_order(data: Tensor, rules: Tensor, *, special: bool = True) -> Tensor:
    """Every second call ranks bytes alone: as a table that is gone through in the order of hashes."""
    return encoded(data, rules[: len(rules) // 2 if next(_calls) % 2 else None], special=special)


def signs_beyond_the_vocabulary(data: Tensor, size: Tensor) -> Tensor:
    """Signs are added after the size was reached."""
    return torch.cat([size, trained(data, size - 4)[1:], size + torch.arange(4)])


def sentinels_in_pieces(data: Tensor, rules: Tensor, *, special: bool = True) -> Tensor:
    """A sentinel is text like any."""
    return encoded(data, rules, special=False)


def sentinels_everywhere(data: Tensor, rules: Tensor, *, special: bool = True) -> Tensor:
    """Text that looks like a sentinel is one, whoever wrote it."""
    return encoded(data, rules, special=True)


def begins_every_text(data: Tensor, rules: Tensor, *, special: bool = True) -> Tensor:
    """A first token is put before every text, the empty one too."""
    ids = encoded(data, rules, special=special)
    return torch.cat([torch.full((len(ids), 1), BYTES), ids], 1)
