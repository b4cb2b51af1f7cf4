"""Captured decode steps of a small model on a device: what each gives, from the same keys and values.

Knows no engine; ids, keys held and what the pages hold are handed in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from samebits.infer.chosen_step import HOPPER, chosen_step, step_type
from samebits.infer.contracts.decode_step_gpu.model import model_of
from samebits.infer.decode_step import DecodeStep, capturing
from samebits.infer.drawing import Choices
from samebits.infer.pages import LayerCache
from samebits.model import Model

PAGE_SIZE: Final = 16
STEPS: Final = 3
"""The first is captured, the others are replayed, with other tokens and one more key."""


def decoded(
    ids: Tensor,
    held: Tensor,
    kept: Tensor,
    weights: Tensor,
    *,
    kind: str = HOPPER,
    change: Callable[[DecodeStep], None] | None = None,
) -> Tensor:
    """float32 (steps and a row for the pages, ...): logits of every step one after another, then all keys and values.

    `kept` (layers, 2, rows of the cache, heads, head size): what is in the pages before. `change`, for planted faults:
    what happens to the step before its first layer, each time."""
    model = model_of(weights, len(kept)).for_inference()
    if kind == HOPPER:
        # Refused in one line where it cannot run.
        chosen_step(model, PAGE_SIZE, kind)
    rows, caches = len(ids), _filled(model, kept)
    most = kept.shape[2] // PAGE_SIZE // rows
    step = step_type(kind)(model, caches, rows, most, capturing(model.device))
    if change is not None:
        _changed(step, change)
    tables = [[row + rows * page for page in range(most)] for row in range(rows)]
    choices = Choices(torch.zeros(4, rows, dtype=torch.int64), torch.tensor([[0.0], [1.0]]).repeat(1, rows))
    found = []
    for number in range(STEPS):
        tokens = [(token + number) % model.config.vocab_size for token in ids.tolist()]
        found.append(step.run(tokens, (held + number).tolist(), tables, choices).logits.flatten().clone())
    return torch.cat([*found, *(each.flatten().float() for cache in caches for each in (cache.k, cache.v))])


def _filled(model: Model, kept: Tensor) -> list[LayerCache]:
    """A cache a layer, which holds these keys and values."""
    heads, head = kept.shape[3:]
    caches = [
        LayerCache(kept.shape[2] // PAGE_SIZE, PAGE_SIZE, heads, head, dtype=model.dtype, device=model.device)
        for _ in range(len(kept))
    ]
    for cache, (keys, values) in zip(caches, kept, strict=True):
        cache.k_flat.copy_(keys)
        cache.v_flat.copy_(values)
    return caches


def _changed(step: DecodeStep, change: Callable[[DecodeStep], None]) -> None:
    plain = step._hidden

    def hidden() -> Tensor:
        change(step)
        return plain()

    vars(step)["_hidden"] = hidden
