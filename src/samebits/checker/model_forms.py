"""The ways one sequence is run through a model: alone, in a batch, padded, in chunks, token by token with a cache.

Each form says which rows of its calls are the sequence. Knows transformers' calling convention and no model."""

from __future__ import annotations

import inspect
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
    count: bool = False
    """Whether positions are handed over where there is no mask."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """One way to run the sequence. More than one call share a cache."""

    promise: str
    words: str
    calls: tuple[Call, ...]
    moved: bool = False
    """Whether the sequence begins elsewhere than in its row's first column."""

    @property
    def cached(self) -> bool:
        return len(self.calls) > 1


@dataclass(frozen=True, slots=True)
class Ran:
    """What a form gave for the sequence's tokens: logits, logprobs, and gradients by name where there are any."""

    results: dict[str, Tensor]
    kept: bool = True
    """Whether the cache that the calls share, where they do, holds anything at the end."""


def draw(vocabulary: int, count: int, length: int, stream: int) -> Tensor:
    """Token ids, the same on every machine."""
    words = philox_uint32(SEED, stream, count * length).astype(np.int64)
    return torch.from_numpy(words * vocabulary >> 32).reshape(count, length)


def alone(ids: Tensor, *, count: bool = False, stop: int | None = None) -> Form:
    """The sequence by itself, whose logits before `stop` are looked at; `count` says that its positions begin at 0."""
    call = Call(ids=ids.reshape(1, -1), mask=None, row=0, start=0, stop=stop or ids.numel(), count=count)
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
    words = f"padded on the {side} to {width}, beside 2 others"
    return Form(promise="padding", words=words, calls=(call,), moved=start > 0)


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
            cache = import_module("transformers").DynamicCache(config=model.config) if form.cached else None
            logits = torch.cat(list(_logits(model, form, cache)), 0)
            return Ran({"logits": logits, **_logprobs(logits, _sequence(form))}, cache is None or _holds_any(cache))
    (call,) = form.calls
    table = model.get_input_embeddings()  # type: ignore[operator]
    device = table.weight.device
    rows = table(call.ids.to(device)).detach().requires_grad_()
    # A copy: some models write into what they are given, which a leaf does not allow.
    output = model(inputs_embeds=rows.clone(), use_cache=False, **_options(model, call, device))
    logits = output.logits[call.row, call.start : call.stop]
    found = {"logits": logits, **_logprobs(logits, _sequence(form))}
    weights = {name: each for name, each in model.named_parameters() if each.requires_grad}
    given = torch.autograd.grad(found["logprobs"].sum(), [rows, *weights.values()], allow_unused=True)
    found["gradient of the input"] = given[0][call.row, call.start : call.stop]
    named = zip(weights, given[1:], strict=True)
    found |= {f"gradient of {name}": each for name, each in named if each is not None}
    return Ran({name: each.detach() for name, each in found.items()})


def _logits(model: nn.Module, form: Form, cache: Any) -> Iterator[Tensor]:
    device = next(model.parameters()).device
    for call in form.calls:
        output = model(
            input_ids=call.ids.to(device), past_key_values=cache, use_cache=form.cached, **_options(model, call, device)
        )
        yield output.logits[call.row, call.start : call.stop]


def _holds_any(cache: Any) -> bool:
    try:
        return bool(cache.get_seq_length() > 0)
    except ValueError:
        return True  # states alone, which have no length


def takes_positions(model: nn.Module) -> bool:
    """Whether a caller can say where a sequence begins."""
    return "position_ids" in inspect.signature(model.forward).parameters


def _options(model: nn.Module, call: Call, device: torch.device) -> dict[str, Any]:
    """With padding the positions count from a sequence's own first token."""
    mask = torch.ones_like(call.ids) if call.mask is None else call.mask
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    options = {} if call.mask is None else {"attention_mask": mask.to(device)}
    if takes_positions(model) and (call.mask is not None or call.count):
        options["position_ids"] = positions.to(device)
    return options


def _sequence(form: Form) -> Tensor:
    return torch.cat([call.ids[call.row, call.start : call.stop] for call in form.calls])


def _logprobs(logits: Tensor, ids: Tensor) -> dict[str, Tensor]:
    """log p of each next token."""
    every = torch.log_softmax(logits[:-1].float(), -1)
    return {"logprobs": every.gather(-1, ids[1:].to(every.device).unsqueeze(-1)).squeeze(-1)}
