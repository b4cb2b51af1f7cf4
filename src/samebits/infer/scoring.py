"""How likely continuations are after their contexts, by the engine: whatever shares a batch, the bits are the same.

Knows tokens only. A sum of logprobs is exact and rounded once, so that it has no order either."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from samebits.infer.engine import Engine
from samebits.infer.request import Request, Sampling
from samebits.model import Model

PAGE_SIZE: Final = 16
# Tokens of a forward pass: a step of many short prompts, or a part of a long one. Speed only.
BATCH_TOKENS: Final = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A context and what comes after it, both at least one token."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.context or not self.continuation:
            sizes = f"{len(self.context)} tokens of context, {len(self.continuation)} of continuation"
            raise ValueError(f"scoring: {sizes}; allowed: at least one of each")

    @property
    def tokens(self) -> tuple[int, ...]:
        return (*self.context, *self.continuation)

    def within(self, longest: int) -> Pair:
        """The same with a context that is cut from the left until all of it has at most `longest` tokens."""
        excess = len(self.tokens) - longest
        if excess <= 0:
            return self
        if excess >= len(self.context):
            raise ValueError(
                f"scoring: a continuation has {len(self.continuation)} tokens; allowed: at most {longest - 1}"
            )
        return Pair(context=self.context[excess:], continuation=self.continuation)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """Of one continuation."""

    logprobs: tuple[float, ...]
    """float32 values, token by token."""
    greedy: bool | None
    """Whether each token was the most likely one; None where nobody asked."""

    @property
    def loglikelihood(self) -> float:
        return math.fsum(self.logprobs)


class Scorer:
    """A model that scores. Windows are at most as long as its positions but one: the engine computes a last token."""

    def __init__(self, model: Model, *, batch_size: int) -> None:
        if type(batch_size) is not int or not 1 <= batch_size <= 2**16:
            raise ValueError(f"scoring: batch_size is {batch_size!r}; allowed: 1 to {2**16}")
        self.model, self.batch_size = model.for_inference(), batch_size

    @property
    def longest(self) -> int:
        """Tokens of the longest pair."""
        return self.model.config.max_position_embeddings - 1

    def score(self, pairs: Sequence[Pair], *, greedy: bool = False) -> list[Scored]:
        """Of each pair, in their order. Pages are those that the longest of them needs, for a whole batch."""
        if not pairs:
            return []
        engine = self.engine(max(len(pair.tokens) for pair in pairs) + 1)
        tickets = {engine.submit(_request(pair, greedy)): place for place, pair in enumerate(pairs)}
        found: dict[int, Scored] = {}
        while not engine.idle:
            for event in engine.step():
                place = tickets[event.ticket]
                pair, told = pairs[place], event.prompt_logprobs
                assert told is not None
                count = len(pair.continuation)
                likeliest = [top[0][0] for top in event.prompt_top or ()] if greedy else []
                found[place] = Scored(
                    logprobs=told[-count:], greedy=tuple(likeliest[-count:]) == pair.continuation if greedy else None
                )
        return [found[place] for place in range(len(pairs))]

    def engine(self, tokens: int) -> Engine:
        """For a batch of requests of so many tokens each."""
        pages = self.batch_size * -(-tokens // PAGE_SIZE)
        together = max(BATCH_TOKENS, self.batch_size)
        return Engine(
            self.model, pages=pages, page_size=PAGE_SIZE, batch_tokens=together, batch_requests=self.batch_size
        )


def _request(pair: Pair, greedy: bool) -> Request:
    return Request(
        prompt=pair.tokens,
        max_tokens=1,
        sampling=Sampling(temperature=0.0),
        score_prompt=True,
        top_logprobs=int(greedy),
    )


def rolling(tokens: Sequence[int], prefix: int, longest: int) -> list[Pair]:
    """Windows of a text in which every token is predicted once: the first after `prefix`, each with as much context
    as a window of `longest` tokens gives it. As in lm-evaluation-harness, whose max_length is one less."""
    pairs, size, done = [], longest - 1, min(longest - 1, len(tokens))
    if not tokens:
        return []
    pairs.append(Pair(context=(prefix,), continuation=tuple(tokens[:done])))
    while done < len(tokens):
        end = min(len(tokens), done + size)
        first = end - size - 1
        pairs.append(Pair(context=tuple(tokens[first:done]), continuation=tuple(tokens[done:end])))
        done = end
    return pairs
