"""How a checker drives kept logits: sequences are written to a store, then read one by one in another order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import torch
from torch import Tensor

from samebits.contracts.spec import Arguments
from samebits.model.contracts.specs import numbers, spec
from samebits.train.contracts.teacher_logits import Form
from samebits.train.teacher_store import TeacherStore, Tokens

ROWS: Final = 16
"""Of a sequence."""
TEMPERATURE: Final = 2.0
TOP_K: Final = 64
# Logits of a language model lie some ten apart; a recipe's numbers lie about one apart.
SPREAD: Final = 4.0


def sequence(number: int) -> Tokens:
    """Tokens by which the logits of one sequence are found."""
    return np.arange(ROWS, dtype=np.int64) + 1000 * number


def read_back_in(form: Form, logits_SRV: Tensor, *, store: type[TeacherStore] = TeacherStore) -> Tensor:
    """(S, R, V): what a store in this form gives back. It is read from its last sequence to its first."""
    with TemporaryDirectory() as folder:
        kept = store(Path(folder), "teacher", form)
        given = {number: sequence(number) for number in range(len(logits_SRV))}

        def live(wanted: Sequence[Tokens]) -> Tensor:
            return torch.cat([logits_SRV[int(tokens[0]) // 1000] for tokens in wanted])

        for group in kept.missing(given.values()):
            kept.add(group, live, 1.0, 2)
        kept.look()
        found = {number: kept.logits(tokens) for number, tokens in reversed(given.items())}
        return torch.stack([found[number] for number in sorted(found)])


def read_back(logits_SRV: Tensor) -> Tensor:
    """All logits, in float32."""
    return read_back_in(Form(vocab_size=logits_SRV.shape[-1], temperature=TEMPERATURE), logits_SRV)


def read_back_largest(logits_SRV: Tensor) -> Tensor:
    """The largest of each row with the remainder."""
    return read_back_in(Form(vocab_size=logits_SRV.shape[-1], temperature=TEMPERATURE, top_k=TOP_K), logits_SRV)


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    sequences, vocabulary = shape
    return {"logits": numbers(recipe, (sequences, ROWS, vocabulary), seed, format) * SPREAD}


SPECS: Final = {"read_back": spec("read_back", "SV", _make, rows=("logits",))}
