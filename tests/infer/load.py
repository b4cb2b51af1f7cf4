"""A random load for the engine, and its judge: the training forward over prompt and answer, all at once.

If every logprob is the judge's and every token is what `sample` draws from the judge's logits, then by induction the
answer is that of a run alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from samebits.infer import Completion, Engine, Event, Request, Sampling
from samebits.model import Batch, Model, ModelConfig
from samebits.ops import sample

SMALL = ModelConfig(
    vocab_size=211,
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=80,
    max_position_embeddings=128,
)
STEMS = 3


@dataclass(frozen=True)
class Arrival:
    """A request, the step before which it comes, and after how many of its tokens it is cancelled, if at all."""

    request: Request
    step: int
    cancelled_after: int | None


def arrivals(count: int, seed: int, config: ModelConfig = SMALL) -> list[Arrival]:
    """Mixed lengths and ways of drawing; half of the prompts begin like others; one in eight is given up."""
    dice = random.Random(seed)

    def text(length: int) -> tuple[int, ...]:
        return tuple(dice.randrange(config.vocab_size) for _ in range(length))

    stems, made, step = [text(length) for length in (17, 33, 48)[:STEMS]], [], 0
    for number in range(count):
        stem = dice.choice(stems) if dice.random() < 0.5 else ()
        way = dice.choice(
            [Sampling(0.0), Sampling(1.0, 0, 1.0, 7), Sampling(0.8, 20, 0.95, 8), Sampling(1.3, 0, 0.9, 7)]
        )
        made.append(
            Arrival(
                Request(
                    prompt=stem + text(dice.randint(1, 30)),
                    max_tokens=dice.randint(1, 28),
                    sampling=way,
                    stop=frozenset(text(2)),
                    number=number,
                    score_prompt=dice.random() < 0.2,
                    top_logprobs=dice.choice([0, 0, 0, 3]),
                ),
                step,
                dice.randint(0, 6) if dice.random() < 0.125 else None,
            )
        )
        step += dice.choice([0, 0, 1, 1, 2, 5])
    return made


@dataclass
class Outcome:
    """What came of a load: answers in the order of arrival, and all that was ever wrong with the pages."""

    completions: list[Completion]
    events: dict[int, list[Event]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def drive(engine: Engine, load: Sequence[Arrival]) -> Outcome:
    """Arrivals at their steps, cancellations at their tokens, until all is done; pages are counted at every step."""
    tickets: dict[int, Arrival] = {}
    outcome, waiting, step = Outcome([]), list(load), 0
    found: dict[int, Completion] = {}
    while waiting or not engine.idle:
        while waiting and waiting[0].step <= step:
            arrival = waiting.pop(0)
            ticket = engine.submit(arrival.request)
            tickets[ticket], outcome.events[ticket] = arrival, []
            if arrival.cancelled_after == 0:
                engine.cancel(ticket)
        for event in engine.step():
            outcome.events[event.ticket].append(event)
            if event.completion is not None:
                found[event.ticket] = event.completion
            elif tickets[event.ticket].cancelled_after == event.index + 1:
                engine.cancel(event.ticket)
        outcome.problems.extend(engine.problems())
        step += 1
    outcome.completions = [found[ticket] for ticket in sorted(found)]
    return outcome


@dataclass(frozen=True)
class Judgement:
    """How many logprobs and tokens there were, and how many were not those of the judge."""

    logprobs: int = 0
    wrong_logprobs: int = 0
    tokens: int = 0
    wrong_tokens: int = 0

    def __add__(self, other: Judgement) -> Judgement:
        return Judgement(
            self.logprobs + other.logprobs,
            self.wrong_logprobs + other.wrong_logprobs,
            self.tokens + other.tokens,
            self.wrong_tokens + other.wrong_tokens,
        )


def bits(values: Sequence[float] | torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.float32).contiguous().view(torch.int32)


def judge(model: Model, request: Request, completion: Completion) -> Judgement:
    """An answer against one forward pass over all of it, without a cache."""
    text, first = [*request.prompt, *completion.tokens], len(request.prompt) - 1
    if not completion.tokens:
        return Judgement()
    with torch.no_grad():
        hidden = model.hidden(Batch.of([text[:-1]]))
        logprobs = model.logprobs(hidden, torch.tensor(text[1:]))
        way, drawing = request.sampling, hidden[first:]
        drawn = sample(
            model.logits(drawing),
            seed=way.seed,
            requests=torch.full((len(drawing),), request.key),
            positions=torch.arange(first + 1, len(text)),
            temperature=way.temperature,
            top_k=way.top_k,
            top_p=way.top_p,
        )
    given, expected = [*completion.logprobs], logprobs[first:]
    if completion.prompt_logprobs is not None:
        given, expected = [*completion.prompt_logprobs, *given], logprobs
    wrong = int((bits(given) != bits(expected)).sum())
    return Judgement(len(given), wrong, len(drawn), int((drawn != torch.tensor(completion.tokens)).sum()))


def judge_all(model: Model, load: Sequence[Arrival], outcome: Outcome) -> Judgement:
    pairs = zip(load, outcome.completions, strict=True)
    return sum((judge(model, arrival.request, completion) for arrival, completion in pairs), Judgement())
