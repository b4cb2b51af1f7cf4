"""Invariant mode end to end: an unmodified model of transformers inside `invariant_mode()` and outside of it.

Two cases: the forward pass with the loss of every next token, and the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import cycle
from typing import Any, Final

import torch
from torch import Tensor

from samebits.bench import memory
from samebits.bench.cases import EndToEnd, Planned, Setting, Side
from samebits.bench.stock_model import random_weights, transformers_model
from samebits.bench.timing import seconds_of
from samebits.invariant import invariant_mode
from samebits.model.config import ModelConfig
from samebits.model.weights import count
from samebits.numerics.bits import compare

BATCHES: Final = 4
"""Until the same tokens come again."""
Around = Callable[[], AbstractContextManager[Any]]


def planned(name: str, config: ModelConfig, sequences: int, tokens: int) -> list[Planned]:
    def make(backward: bool, setting: Setting) -> EndToEnd:
        needed = bytes_needed(config, setting.dtype, max(2, sequences), tokens)
        memory.require(config, tokens, needed, setting.device)
        model = transformers_model(config, random_weights(config, setting))
        batches = [setting.ids(max(2, sequences) * tokens, config.vocab_size).view(-1, tokens) for _ in range(BATCHES)]
        batch = [each[:sequences] for each in batches]
        return EndToEnd(
            ours=lambda: side(model, batch, invariant_mode, backward),
            theirs={"transformers": lambda: side(model, batch, nullcontext, backward)},
            difference=lambda: (gradient_difference if backward else logits_difference)(model, batches[0]),
            tokens=sequences * tokens,
        )

    sizes = f"{sequences} x {tokens} tokens"
    return [
        Planned("invariant", name, f"{part}, {sizes}", sequences * tokens, partial(make, part == "backward"))
        for part in ("forward", "backward")
    ]


def side(model: Any, batches: list[Tensor], around: Around, backward: bool) -> Side:
    turns = cycle(batches)

    def forward_alone() -> float:
        with around():
            return _forward(model, next(turns))[0]

    return (lambda: pass_seconds(model, next(turns), around)[1]) if backward else forward_alone


def pass_seconds(model: Any, ids: Tensor, around: Around) -> tuple[float, float]:
    """(forward with the loss, backward)."""
    model.zero_grad()
    with around():
        seconds, loss = _forward(model, ids)
        return seconds, seconds_of(lambda: torch.autograd.backward(loss), ids.device)


def _forward(model: Any, ids: Tensor) -> tuple[float, Tensor]:
    losses: list[Tensor] = []
    seconds = seconds_of(lambda: losses.append(model(input_ids=ids, labels=ids, use_cache=False).loss), ids.device)
    return seconds, losses[0]


def logits_difference(model: Any, ids: Tensor) -> str | None:
    with invariant_mode():
        return row_difference(model, ids)


def row_difference(model: Any, ids: Tensor) -> str | None:
    """Where the last sequence has other logits alone than in the batch; in the mode or not, as the caller is."""
    with torch.no_grad():
        together, alone = (model(input_ids=each, use_cache=False).logits for each in (ids, ids[-1:]))
    return _told("logits", alone, together[-1:])


def gradient_difference(model: Any, ids: Tensor) -> str | None:
    """Where the last sequence has another gradient of its embedded tokens, inside the mode."""
    embedded = model.get_input_embeddings()(ids).detach()
    upstream = torch.randn(*ids.shape, model.config.vocab_size, device=ids.device, dtype=embedded.dtype)

    def gradient(rows: slice) -> Tensor:
        inputs = embedded[rows].clone().requires_grad_()
        with invariant_mode():
            logits = model(inputs_embeds=inputs, use_cache=False).logits
            (found,) = torch.autograd.grad(logits, [inputs], [upstream[rows]])
        return found

    return _told("gradient", gradient(slice(-1, None)), gradient(slice(None))[-1:])


def _told(what: str, alone: Tensor, among: Tensor) -> str | None:
    found = compare(alone.cpu(), among.cpu())
    return None if found is None else f"the {what} of a sequence alone against those in the batch: {found}"


def bytes_needed(config: ModelConfig, dtype: torch.dtype, sequences: int, tokens: int) -> int:
    """Weights twice while they are copied, gradients, what layers keep as torch does, and logits in three forms."""
    kept = 8 * config.hidden_size + 5 * config.num_attention_heads * config.head_dim + 4 * config.intermediate_size
    layers = sequences * tokens * config.num_hidden_layers * kept
    head = config.vocab_size * config.hidden_size
    logits = sequences * tokens * config.vocab_size
    return dtype.itemsize * (3 * count(config) + head + layers) + 3 * 4 * logits
