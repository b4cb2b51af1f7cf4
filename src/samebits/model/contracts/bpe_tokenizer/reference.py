"""Byte-level BPE as it is written down, a pair at a time, without any library; and the ids that a vocabulary has."""

from __future__ import annotations

import re
from itertools import pairwise

import torch
from torch import Tensor

from samebits.model.contracts.bpe_tokenizer import BYTES, SENTINELS, padded, rows_of

# How GPT-2 cuts text into words, in the language of Python's own module: letters, digits, marks, spaces.
WORDS = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
SIGNS = re.compile("(" + "|".join(map(re.escape, SENTINELS)) + ")")
LONE = re.compile("[\udc80-\udcff]")


def encoded64(data: Tensor, rules: Tensor, *, special: bool = True, last: bool = False) -> Tensor:
    """(N, longest) ids. `last`: of equal pairs the rightmost is merged first."""
    pairs = [(left, right) for left, right in rules.tolist()]
    return padded(_ids(each, pairs, special, last) for each in rows_of(data))


def returned64(data: Tensor, rules: Tensor) -> Tensor:
    """What went in."""
    return padded(rows_of(data))


def trained64(data: Tensor, size: Tensor) -> Tensor:
    """The size, and every id below it once."""
    return torch.cat([size, torch.arange(int(size))])


def _ids(data: bytes, rules: list[tuple[int, int]], special: bool, last: bool) -> list[int]:
    text, ids = data.decode("utf-8", "surrogateescape"), []
    for piece in SIGNS.split(text) if special else [text]:
        if special and piece in SENTINELS:
            ids.append(BYTES + len(rules) + SENTINELS.index(piece))
            continue
        place = 0
        for lone in LONE.finditer(piece):
            ids += [*_plain(piece[place : lone.start()], rules, last), ord(lone[0]) - 0xDC00]
            place = lone.end()
        ids += _plain(piece[place:], rules, last)
    return ids


def _plain(text: str, rules: list[tuple[int, int]], last: bool) -> list[int]:
    return [number for word in WORDS.findall(text) for number in _merged(list(word.encode()), rules, last)]


def _merged(ids: list[int], rules: list[tuple[int, int]], last: bool) -> list[int]:
    """The pair of the lowest rank, the leftmost of several, becomes one; until there is none."""
    rank = {pair: place for place, pair in enumerate(rules)}
    while True:
        found = [(rank[pair], -place if last else place) for place, pair in enumerate(pairwise(ids)) if pair in rank]
        if not found:
            return ids
        rule, place = min(found)
        ids[abs(place) : abs(place) + 2] = [BYTES + rule]
