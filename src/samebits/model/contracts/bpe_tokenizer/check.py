"""How a checker drives the tokenizer: rows of text or of any bytes, and rules that were met in such text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from samebits.contracts.spec import Arguments
from samebits.model.contracts.bpe_tokenizer import BYTES, SENTINELS
from samebits.model.contracts.specs import spec
from samebits.numerics.elementary.philox import philox_uint32_native

# Runs of one letter tell the leftmost pair from the rightmost; spaces and marks are where words are cut.
PIECES = (
    *(b"the", b"he", b"aaa", b"aa", b"abab", b"ing", b" ", b"  ", b" a", b"\n", b"1", b"2024", b"'s", b"'", b".", b"_"),
    *(text.encode() for text in ("é", "ü", "漢字", "かな", "🙂", "е", "\u0301")),
    *(b"\xff", b"\xc3", b"<|fim_", b"|>", SENTINELS[1].encode()),
)
# Text of which a vocabulary is learned: words alone.
LETTERS = b"abcdefghij  "
ANY = "wide"
"""The recipe of rows of any bytes."""
LEARNED = 40
"""The most words beyond the bytes that a case asks for."""


def _numbers(count: int, seed: int, below: int) -> list[int]:
    words = philox_uint32_native(seed, 0, count, threads=1)
    return [int(word) % below for word in words]


def _text(length: int, seed: int, any_bytes: bool) -> list[int]:
    """So many bytes; a piece that does not fit is cut, inside a character or not."""
    if any_bytes:
        return _numbers(length, seed, BYTES)
    joined = b"".join(PIECES[place] for place in _numbers(length, seed, len(PIECES)))
    return list(joined[:length])


def _rows(count: int, length: int, recipe: str, seed: int) -> Tensor:
    """Where there are as many rows as there are strings of the length: all of them."""
    if length <= 2 and count == BYTES**length:
        places = np.arange(count)
        return torch.from_numpy(np.stack([places // BYTES**power % BYTES for power in range(length)], 1))
    return torch.tensor([_text(length, 2 * (4096 * seed + row), recipe == ANY) for row in range(count)])


def _rules(count: int, seed: int) -> Tensor:
    """Pairs that stand side by side in a text, each merged in it before the next is chosen."""
    ids, spelled = _text(400, 2 * seed + 1, False), {bytes([byte]) for byte in range(BYTES)}
    letters = [bytes([byte]) for byte in range(BYTES)]
    rules: list[tuple[int, int]] = []
    for chosen in _numbers(20 * count, 3 * seed + 1, 2**31):
        left, right = ids[chosen % (len(ids) - 1) :][:2]
        word = letters[left] + letters[right]
        if word in spelled:
            continue
        spelled.add(word)
        letters.append(word)
        rules.append((left, right))
        ids = _merged(ids, left, right, BYTES + len(rules) - 1)
        if len(rules) == count:
            break
    return torch.tensor(rules)


def _merged(ids: list[int], left: int, right: int, made: int) -> list[int]:
    found: list[int] = []
    for each in ids:
        if found and (found[-1], each) == (left, right):
            found[-1] = made
        else:
            found.append(each)
    return found


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    rows, length, rules = shape
    return {"data": _rows(rows, length, recipe, seed), "rules": _rules(rules, seed)}


def _make_texts(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    rows, length = shape
    letters = [[LETTERS[place] for place in _numbers(length, 4096 * seed + row, len(LETTERS))] for row in range(rows)]
    words = BYTES + len(SENTINELS) + _numbers(1, 5 * seed + 2, LEARNED + 1)[0]
    return {"data": torch.tensor(letters), "size": torch.tensor([words])}


SPECS = {
    "bpe_tokenizer": spec("bpe_tokenizer", "NTR", _make, rows=("data",), shared=("rules",)),
    "vocabulary": spec("vocabulary", "NT", _make_texts, rows=("data",), shared=("size",)),
}
