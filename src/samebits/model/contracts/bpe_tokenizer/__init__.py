"""The tokenizer as its contract asks for it: rows of bytes in, rows of ids out, by a table of merge rules.

Bytes have their own numbers as ids; rule i makes id 256 + i out of the two ids in its row; the sentinels follow."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from samebits.model.tokenizer import Tokenizer
from samebits.model.tokenizer_file import LETTER_OF, Parts, byte_level

BYTES: Final = 256
SENTINELS: Final = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|endoftext|>")
# Behind the ids, or the bytes, of a row that has fewer than the longest.
NOTHING: Final = -1


def encoded(data: Tensor, rules: Tensor, *, special: bool = True) -> Tensor:
    """(N, longest) ids of every row of bytes; `special`: whether a sentinel in them is that token."""
    tokenizer = tokenizer_of(rules)
    return padded(tokenizer.encode(each, special=special) for each in rows_of(data))


def returned(data: Tensor, rules: Tensor) -> Tensor:
    """(N, longest) bytes of every row, encoded and decoded."""
    tokenizer = tokenizer_of(rules)
    return padded(tokenizer.decode(tokenizer.encode(each)) for each in rows_of(data))


def trained(data: Tensor, size: Tensor) -> Tensor:
    """The size of a vocabulary learned from the rows as texts, then every id that a token of it has, ascending."""
    texts = [each.decode("utf-8", "replace") for each in rows_of(data)]
    return ids_of(Tokenizer.train(texts, int(size), SENTINELS))


def ids_of(tokenizer: Tokenizer) -> Tensor:
    """The size, and the ids that tokens have."""
    numbers = [*tokenizer.parts.words.values(), *tokenizer.parts.added.values()]
    return torch.tensor([tokenizer.vocabulary, *sorted(numbers)])


def tokenizer_of(rules: Tensor) -> Tokenizer:
    """The tokenizer that these rules make."""
    return _made(tuple(map(tuple, rules.tolist())))


@lru_cache(maxsize=64)
def _made(rules: tuple[tuple[int, int], ...]) -> Tokenizer:
    letters = [LETTER_OF[byte] for byte in range(BYTES)]
    merges = []
    for left, right in rules:
        merges.append((letters[left], letters[right]))
        letters.append(letters[left] + letters[right])
    words = {word: number for number, word in enumerate(letters)}
    added = {sign: len(letters) + place for place, sign in enumerate(SENTINELS)}
    cuts = (byte_level(use_regex=True),)
    parts = Parts(words=words, merges=tuple(merges), added=added, special=frozenset(added), cuts=cuts)
    return Tokenizer(parts=parts)


def rows_of(data: Tensor) -> list[bytes]:
    """Every row as bytes, without what is behind its end."""
    return [bytes(byte for byte in row if byte != NOTHING) for row in data.tolist()]


def padded(rows: Iterable[Iterable[int]]) -> Tensor:
    """Rows of whole numbers as one tensor."""
    listed = [list(row) for row in rows]
    longest = max(map(len, listed), default=0)
    return torch.tensor([row + [NOTHING] * (longest - len(row)) for row in listed]).reshape(len(listed), longest).long()
