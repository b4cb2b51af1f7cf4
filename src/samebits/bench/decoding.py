"""Decoding end to end: samebits' engine with a batch of requests, beside transformers with its cache, both greedy.

A step draws one token of every request, as a caller sees it. On a GPU transformers has a static cache and is compiled
with CUDA graphs; on a CPU it runs as it is."""

from __future__ import annotations

import math
import statistics
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor

from samebits.bench import memory
from samebits.bench.cases import EndToEnd, Planned, Setting, Side
from samebits.bench.stock_model import random_weights, transformers_model
from samebits.bench.timing import seconds_of
from samebits.infer.engine import Engine
from samebits.infer.request import Completion, Request, Sampling, bits
from samebits.model.config import ModelConfig
from samebits.model.model import Model
from samebits.model.weights import EMBEDDING, count, shapes

STEPS: Final = 8
"""Of one measurement, which is their median: both sides then stand at the same places."""
ANSWER: Final = 1 + 6 * STEPS
"""Tokens of an answer: the first comes with the prompt. Five measurements and a warm-up; then requests come anew."""
CHECKED: Final = 16
"""Tokens of an answer whose bits are looked at."""
PAGE: Final = 16
Prompts = list[tuple[int, ...]]


def planned(model: str, config: ModelConfig, batch: int, prompt: int) -> Planned:
    """Some requests at once, with prompts of so many tokens."""

    def make(setting: Setting) -> EndToEnd:
        memory.require(config, prompt + ANSWER, bytes_needed(config, setting.dtype, batch, prompt), setting.device)
        ours = Model(config=config, weights=random_weights(config, setting)).for_inference()
        prompts = random_prompts(config, max(2, batch), prompt)

        def theirs() -> Side:
            stock = transformers_model(config, dict(ours.weights))
            return TransformersDecoding(stock, torch.tensor(prompts[:batch], device=setting.device))

        return EndToEnd(
            ours=lambda: EngineDecoding(ours, prompts[:batch]),
            theirs={"transformers compiled" if setting.device.type == "cuda" else "transformers": theirs},
            difference=lambda: difference(ours, prompts),
            tokens=batch,
            bytes_read=bytes_read(config, setting.dtype),
        )

    return Planned("decode", model, f"batch {batch}, prompt {prompt}", batch, make)


def random_prompts(config: ModelConfig, requests: int, length: int) -> Prompts:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(config.vocab_size, (requests, length), generator=generator)
    return [tuple(each) for each in drawn.tolist()]


def difference(model: Model, prompts: Prompts) -> str | None:
    """Where the first or the last request of a batch has another answer alone."""
    together = _answers(model, prompts)
    for row in (0, len(prompts) - 1):
        (alone,) = _answers(model, [prompts[row]])
        both = zip(_told(alone), _told(together[row]), strict=True)
        for place, (mine, beside) in enumerate(both):
            if mine != beside:
                where = f"request {row + 1} of {len(prompts)}, token {place + 1}"
                return f"{where}: {mine[0]} with logprob {mine[1]} alone, {beside[0]} with {beside[1]} in the batch"
    return None


def _answers(model: Model, prompts: Prompts) -> list[Completion]:
    return _engine(model, prompts, CHECKED).generate(_requests(prompts, CHECKED))


def _told(answer: Completion) -> list[tuple[int, str]]:
    return [(token, bits(logprob)) for token, logprob in zip(answer.tokens, answer.logprobs, strict=True)]


def _engine(model: Model, prompts: Prompts, answer: int) -> Engine:
    """All prompts in one pass, so that every later step decodes the whole batch."""
    each = len(prompts[0])
    pages = len(prompts) * -(-(each + answer) // PAGE)
    together = len(prompts) * each
    return Engine(model, pages=pages, page_size=PAGE, batch_tokens=together, batch_requests=len(prompts))


def _requests(prompts: Prompts, answer: int) -> list[Request]:
    return [Request(prompt=each, max_tokens=answer, sampling=Sampling(temperature=0.0)) for each in prompts]


class EngineDecoding:
    """The engine in the middle of its answers: a call makes some steps, and tells the seconds of one."""

    def __init__(self, model: Model, prompts: Prompts) -> None:
        self.requests, self.engine = _requests(prompts, ANSWER), _engine(model, prompts, ANSWER)

    def __call__(self) -> float:
        if self.engine.idle:
            for each in self.requests:
                self.engine.submit(each)
            self.engine.step()
        device = self.engine.model.device
        return statistics.median(seconds_of(self.engine.step, device) for _ in range(STEPS))


class TransformersDecoding:
    """A model of transformers in the middle of its answers, likewise."""

    def __init__(self, model: Any, prompts: Tensor) -> None:
        self.model, self.prompts, self.left = model, prompts, 0
        self.forward, self.cache = model, None
        if prompts.is_cuda:
            # What was compiled for another batch would make this one's sizes variable, and slower.
            torch.compiler.reset()
            self.forward = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
            longest = prompts.shape[1] + ANSWER
            self.cache = import_module("transformers").StaticCache(config=model.config, max_cache_len=longest)

    def __call__(self) -> float:
        with torch.no_grad():
            if not self.left:
                self._begin()
            seconds = statistics.median(seconds_of(self._step, self.prompts.device) for _ in range(STEPS))
            self.left -= STEPS
            if not self.left and self.cache is not None:
                self.cache.reset()
            return seconds

    def _begin(self) -> None:
        self.left, self.place = ANSWER - 1, self.prompts.shape[1]
        places = torch.arange(self.place, device=self.prompts.device)[None]
        self._draw(
            self.model(self.prompts, past_key_values=self.cache, use_cache=True, position_ids=places, logits_to_keep=1)
        )

    def _step(self) -> None:
        places = torch.tensor([[self.place]], device=self.prompts.device)
        # A graph's output is written over by the next replay.
        self._draw(self.forward(self.token.clone(), past_key_values=self.past, use_cache=True, position_ids=places))
        self.place += 1

    def _draw(self, found: Any) -> None:
        self.past = found.past_key_values if self.cache is None else self.cache
        self.token = found.logits[:, -1:].argmax(-1)
        self.token.tolist()


def bytes_read(config: ModelConfig, dtype: torch.dtype) -> int:
    """Of the weights by a step: all but the embedding, unless it is the head as well."""
    kept = [shape for name, shape in shapes(config).items() if name != EMBEDDING or config.tie_word_embeddings]
    return dtype.itemsize * sum(map(math.prod, kept))


def bytes_needed(config: ModelConfig, dtype: torch.dtype, batch: int, prompt: int) -> int:
    """Weights of both sides, a head that transformers makes before it is tied, caches, and the widest of a prompt."""
    keys = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * batch * (prompt + ANSWER)
    widest = batch * prompt * (4 * config.hidden_size + 3 * config.intermediate_size)
    numbers = 2 * count(config) + config.vocab_size * config.hidden_size + 2 * keys + widest
    return dtype.itemsize * numbers + 2 * 4 * batch * config.vocab_size
