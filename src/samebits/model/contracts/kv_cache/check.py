"""How a checker drives a computation in steps: sequences, tokens and layers; a drawn prompt, a chunk, single tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from samebits.contracts.spec import Arguments
from samebits.model.contracts.model_forward.check import make as make_forward
from samebits.model.contracts.specs import fractions, spec


def _steps(tokens: int, seed: int) -> Tensor:
    """A prompt, a chunk of what is left, then token by token."""
    first, second = fractions((2,), 5 * seed + 3)
    prompt = 1 + int(first * (tokens - 1))
    chunk = int(second * (tokens - prompt + 1))
    return torch.tensor([prompt, *([chunk] if chunk else []), *[1] * (tokens - prompt - chunk)])


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    made = make_forward(shape, recipe, format, seed)
    return {"ids": made["ids"], "steps": _steps(shape[1], seed), "weights": made["weights"]}


SPECS = {"kv_cache": spec("kv_cache", "BSL", _make, rows=("ids",), shared=("steps", "weights"))}
