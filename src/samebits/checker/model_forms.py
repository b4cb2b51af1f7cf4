"""The ways one sequence is run through a model: alone, in a batch, padded, in chunks, token by token with a cache.

Each form says which rows of its calls are the sequence. Knows transformers' calling convention and no model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samebits.numerics.elementary import philox_uint32

LENGTH = 40
SEED = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One forward call; the sequence's tokens of this call are row `row`, columns `start` to `stop`."""

    ids: Tensor
    mask: Tensor | None
    row: int
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """One way to run the sequence. More than one call share a cache."""

    promise: str
    words: str
    calls: tuple[Call, ...]

    @property
    def cached(self) -> bool:
        return len(self.calls) > 1


@dataclass(frozen=True, slots=True)
class Ran:
    """What a form gave for the sequence's tokens: logits, logprobs, and gradients by name where there are any."""

    results: dict[str, Tensor]


def draw(vocabulary: int, count: int, length: int, stream: int) -> Tensor:
    """Token ids, the same on every machine."""
    words = philox_uint32(SEED, stream, count * length).astype(np.int64)
    return torch.from_numpy(words * vocabulary >> 32).reshape(count, length)


def alone(ids: Tensor) -> Form:
    length = ids.numel()
    call = Call(ids=ids.reshape(1, -1), mask=None, row=0, start=0, stop=length)
    return Form(promise="repeat", words="again", calls=(call,))


def forms(ids: Tensor, vocabulary: int) -> Iterator[Form]:
    """Every form that must give the bits of the sequence alone."""
    length = ids.numel()
    yield alone(ids)
    for count, row in ((2, 0), (3, 2), (8, 5)):
        batch = draw(vocabulary, count, length, count)
        batch[row] = ids
        call = Call(ids=batch, mask=None, row=row, start=0, stop=length)
        yield Form(promise="batch", words=f"row {row} of {count}", calls=(call,))
    for side in ("left", "right"):
        yield _padded(ids, vocabulary, side)
    for cut in (1, 7, length // 2):
        yield _in_parts(ids, cut, "chunk", f"chunks of {cut}, the first of {length % cut or cut}")
    yield _in_parts(ids, 1, "cache", "token by token")


def _padded(ids: Tensor, vocabulary: int, side: str) -> Form:
    """Beside a longer and a shorter sequence, each padded to the longest."""
    length, row = ids.numel(), 1
    lengths = (length + 9, length, max(length // 3, 1))
    width = max(lengths)
    batch = draw(vocabulary, len(lengths), width, 11)
    mask = torch.zeros(batch.shape, dtype=torch.int64)
    for each, size in enumerate(lengths):
        mask[each, width - size if side == "left" else 0 : width if side == "left" else size] = 1
    start = width - length if side == "left" else 0
    batch[row, start : start + length] = ids
    call = Call(ids=batch, mask=mask, row=row, start=start, stop=start + length)
    return Form(promise="padding", words=f"padded on the {side} to {width}, beside 2 others", calls=(call,))


def _in_parts(ids: Tensor, size: int, promise: str, words: str) -> Form:
    length = ids.numel()
    cuts = [0, *range(length % size or size, length + 1, size)]
    parts = [ids[a:b].reshape(1, -1) for a, b in pairwise(cuts)]
    calls = tuple(Call(ids=part, mask=None, row=0, start=0, stop=part.shape[1]) for part in parts)
    return Form(promise=promise, words=words, calls=calls)


def run(model: nn.Module, form: Form, gradients: bool = True) -> Ran:
    """The sequence's logits and logprobs; gradients of its input rows and of every weight where it is one call."""
    if form.cached or not gradients:
        with torch.no_grad():
            logits = torch.cat(list(_logits(model, form)), 0)
            return Ran({"logits": logits, **_logprobs(logits, _sequence(form))})
    (call,) = form.calls
    table = model.get_input_embeddings()  # type: ignore[operator]
    device = table.weight.device
    rows = table(call.ids.to(device)).detach().requires_grad_()
    output = model(inputs_embeds=rows, use_cache=False, **_options(call, device))
    logits = output.logits[call.row, call.start : call.stop]
    found = {"logits": logits, **_logprobs(logits, _sequence(form))}
    weights = {name: each for name, each in model.named_parameters() if each.requires_grad}
    given = torch.autograd.grad(found["logprobs"].sum(), [rows, *weights.values()], allow_unused=True)
    found["gradient of the input"] = given[0][call.row, call.start : call.stop]
    named = zip(weights, given[1:], strict=True)
    found |= {f"gradient of {name}": each for name, each in named if each is not None}
    return Ran({name: each.detach() for name, each in found.items()})


def _logits(model: nn.Module, form: Form) -> Iterator[Tensor]:
    device = next(model.parameters()).device
    cache = import_module("transformers").DynamicCache(config=model.config) if form.cached else None
    for call in form.calls:
        output = model(
            input_ids=call.ids.to(device), past_key_values=cache, use_cache=form.cached, **_options(call, device)
        )
        yield output.logits[call.row, call.start : call.stop]


def _options(call: Call, device: torch.device) -> dict[str, Any]:
    """With padding the positions count from a sequence's own first token."""
    if call.mask is None:
        return {}
    positions = (call.mask.cumsum(-1) - 1).clamp(min=0)
    return {"attention_mask": call.mask.to(device), "position_ids": positions.to(device)}


def _sequence(form: Form) -> Tensor:
    return torch.cat([call.ids[call.row, call.start : call.stop] for call in form.calls])


def _logprobs(logits: Tensor, ids: Tensor) -> dict[str, Tensor]:
    """log p of each next token."""
    every = torch.log_softmax(logits[:-1].float(), -1)
    return {"logprobs": every.gather(-1, ids[1:].to(every.device).unsqueeze(-1)).squeeze(-1)}
