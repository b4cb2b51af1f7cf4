"""How a checker drives the gradient of an embedding: a row is a step, with its tokens and what flows back to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from samebits.contracts.spec import Arguments
from samebits.model.contracts.specs import fractions, numbers, spec
from samebits.train.contracts.embed_grad import VOCABULARY
from samebits.train.contracts.train_stable import check as runs


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    steps, tokens, width = shape
    ids = torch.from_numpy((fractions((steps, tokens), 2 * seed) * VOCABULARY).astype("int64"))
    return {"dy": numbers(recipe, (steps, tokens, width), 2 * seed + 1, format), "ids": ids}


SPECS = {
    "embed_grad": spec("embed_grad", "STH", _make, rows=("dy", "ids")),
    "table_after": replace(runs.SPECS["train_stable"], name="table_after"),
}
