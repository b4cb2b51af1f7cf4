"""What flows into each weight of a model on some text: per input channel the sum of squares over all tokens.

By the model's own forward pass, so the numbers have its promises; squares are exact in float64, tokens are added by
halves of a sequence and sequences in their order. Knows no method that uses it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from samebits.model.batch import Batch
from samebits.model.model import Model
from samebits.model.tokenizer import Tokenizer
from samebits.nn import OURS
from samebits.records.plain_file import read_plain

# Decides bits: tokens of one sequence of calibration, and of one balanced tree of their sum. A power of two.
LENGTH: Final = 512
SUFFIXES: Final = (".txt", ".md", ".rst", ".py")
MOST_BYTES: Final = 2**26
MOST_FILES: Final = 10_000


def sequences_of(texts: Sequence[str], tokenizer: Tokenizer, tokens: int) -> list[list[int]]:
    """The first `tokens` tokens of the texts, end to end, cut into sequences; a rest that is shorter is left out."""
    ids: list[int] = []
    for text in texts:
        ids += tokenizer.encode(text)
        if len(ids) >= tokens:
            break
    count = min(len(ids), tokens) // LENGTH
    if count < 1:
        raise ValueError(f"calibration: the text has {len(ids)} tokens; allowed: at least {LENGTH}")
    return [ids[LENGTH * number : LENGTH * (number + 1)] for number in range(count)]


def recorded(sequences: Sequence[Sequence[int]]) -> dict[str, object]:
    """How many tokens, and which."""
    text = "\n".join(" ".join(map(str, each)) for each in sequences)
    return {"tokens": sum(map(len, sequences)), "sequence": LENGTH, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def squares(model: Model, sequences: Sequence[Sequence[int]], tell: Callable[[int], None]) -> dict[str, Tensor]:
    """By weight: float64, the sum over all tokens of the square of each input channel."""
    names = {weight.data_ptr(): name for name, weight in model.weights.items()}
    total: dict[str, Tensor] = {}
    last: list[Tensor] = []

    def linear(x: Tensor, weight: Tensor, sums: None) -> Tensor:
        # Several weights read one input, one after another: it is summed once.
        if not last or last[0] is not x:
            last[:] = [x, _halves(x.reshape(-1, x.shape[-1]).double().square())]
        name = names[weight.data_ptr()]
        total[name] = total[name] + last[1] if name in total else last[1]
        return OURS.linear(x, weight, sums)

    heard = replace(model, operators=replace(OURS, linear=linear))
    with torch.no_grad():
        for sequence in sequences:
            heard.hidden(Batch.of([sequence]))
            tell(1)
    refuse_unless_finite(total)
    return total


def refuse_unless_finite(flowing: Mapping[str, Tensor]) -> None:
    """Of numbers that are not finite none is the least, so what is chosen by them would be chosen by its place."""
    for name, each in flowing.items():
        if not bool(each.isfinite().all()):
            raise ValueError(f"calibration: what flows into {name} is not finite; allowed: finite numbers")


def _halves(terms: Tensor) -> Tensor:
    """The sum over the first axis: term i and term i + half, until one is left; zeros behind the last."""
    half = LENGTH // 2
    while half >= 1:
        if len(terms) > half:
            first = terms[:half].clone()
            first[: len(terms) - half] += terms[half:]
            terms = first
        half //= 2
    return terms[0]


def texts_of(paths: Sequence[Path]) -> list[str]:
    """The texts of files, and of the .txt, .md, .rst and .py files in folders, in the order of their names; without
    paths the sources of Python's standard library."""
    files: list[Path] = []
    for path in paths or [Path(os.__file__).parent]:
        inside = path.rglob("*") if paths else path.glob("*")
        files += sorted(each for each in inside if each.suffix in SUFFIXES) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"calibration: {', '.join(map(str, paths))} has no text; allowed: {', '.join(SUFFIXES)}")
    return [_text(file) for file in files[:MOST_FILES]]


def _text(file: Path) -> str:
    try:
        return read_plain(file, MOST_BYTES).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"calibration: {file} is not UTF-8 at byte {error.start}; allowed: text") from None
