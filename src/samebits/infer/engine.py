"""The engine: requests come and go, each step is one forward pass over all that are ready, events come out.

A request's tokens and logprobs depend on the request and the weights, on nothing that runs beside it: the forward pass,
the draw and the cache keep their bits, and this file only decides who is in the batch. Knows no text. One thread."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from samebits.infer.chosen_step import NONE, DecodeSteps
from samebits.infer.decode_step import Decoded
from samebits.infer.drawing import Choices, Drawn, NotFiniteError, draw, likeliest
from samebits.infer.pages import LayerCache, PagePool, Tables
from samebits.infer.request import NO_TOKEN, Completion, Event, Finish, Request
from samebits.infer.scheduler import Job, Scheduler
from samebits.model import Batch, Model
from samebits.nn.strategy import OURS
from samebits.ops.attention.cache import PAGE_MULTIPLE
from samebits.ops.threads import torch_at_rest

# A token's logprob, and the likeliest tokens in its place with theirs.
Score = tuple[float, tuple[tuple[int, float], ...]]


def _without_sums(model: Model) -> Model:
    """The same weights; nothing is kept for a backward pass. The model itself, if it has none: who puts another weight
    into it is noticed."""
    return model if model.sums is None else replace(model, sums=None)


class Engine:
    """A model, the pages of its key-value cache, and the requests that use them."""

    def __init__(
        self,
        model: Model,
        *,
        pages: int,
        page_size: int = 16,
        batch_tokens: int = 256,
        batch_requests: int = 64,
        decode_step: str | None = None,
    ) -> None:
        """`pages` of `page_size` tokens; most tokens and requests of a step; `decode_step`: chosen_step.py. No bits."""
        for name, value in (("pages", pages), ("batch_requests", batch_requests)):
            if value < 1:
                raise ValueError(f"engine: {name} is {value}; allowed: at least 1")
        if page_size < 1 or page_size % PAGE_MULTIPLE:
            raise ValueError(f"engine: page_size is {page_size}; allowed: a multiple of {PAGE_MULTIPLE}")
        if batch_tokens < batch_requests:
            raise ValueError(
                f"engine: batch_tokens is {batch_tokens}, batch_requests {batch_requests}; allowed: at least as many"
            )
        self.model = _without_sums(model)
        config = model.config
        self._limit = min(config.max_position_embeddings, pages * page_size)
        self._pool = PagePool(pages)
        self._scheduler = Scheduler(self._pool, page_size, batch_tokens, batch_requests)
        sizes = (pages, page_size, model.key_heads, config.head_dim)
        self._caches = [
            LayerCache(*sizes, dtype=model.dtype, device=model.device) for _ in range(config.num_hidden_layers)
        ]
        self._decode_steps = DecodeSteps(self.model, self._caches, self._limit, decode_step)
        self._jobs: dict[int, Job] = {}
        self._unsent: list[Event] = []
        self._weights_seen = self._weights_written()
        self._tickets = self._steps = self._tokens = self._computed = self._cancellations = 0

    @property
    def idle(self) -> bool:
        """Whether a step would do and tell nothing."""
        return not self._jobs and not self._unsent

    @property
    def decode_step(self) -> str:
        """Which captured step decodes: "hopper", "plain" or "none"."""
        return self._decode_steps.kind

    def statistics(self) -> dict[str, int]:
        """Requests and pages now; all else since the beginning. `pages_free` counts those kept for their contents."""
        scheduler, pool = self._scheduler, self._pool
        return {
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "pages_free": pool.available,
            "pages_used": pool.count - pool.available,
            "pages_kept": pool.kept,
            "prefix_hits": scheduler.prefix_hits,
            "prefix_tokens": scheduler.prefix_tokens,
            "preemptions": scheduler.preemptions,
            "cancellations": self._cancellations,
            "requests": self._tickets,
            "tokens": self._tokens,
            "computed_tokens": self._computed,
            "steps": self._steps,
        }

    def problems(self) -> list[str]:
        """What does not add up in the accounting of pages: nothing, unless the engine is wrong."""
        return self._pool.problems(job.table for job in self._jobs.values())

    def check(self, request: Request) -> None:
        """Refuse what can never run; `submit` does."""
        vocabulary = self.model.config.vocab_size
        for place, token in enumerate(request.prompt):
            if type(token) is not int or not 0 <= token < vocabulary:
                raise ValueError(f"engine: token {place} of the prompt is {token!r}; allowed: 0 to {vocabulary - 1}")
        longest = len(request.prompt) + request.max_tokens
        if longest > self._limit:
            raise ValueError(
                f"engine: a prompt of {len(request.prompt)} tokens and max_tokens {request.max_tokens} make {longest};"
                f" allowed: {self._limit}, the lesser of max_position_embeddings and what all pages hold"
            )

    def submit(self, request: Request) -> int:
        """The ticket by which its events are known. Nothing is computed yet."""
        self.check(request)
        ticket = self._tickets
        self._tickets += 1
        self._jobs[ticket] = job = Job(ticket=ticket, request=request, number=request.key, tokens=list(request.prompt))
        self._scheduler.waiting.append(job)
        return ticket

    def cancel(self, ticket: int) -> None:
        """Give back its pages now; the next step tells its end. A request that has ended is left as it is."""
        if not 0 <= ticket < self._tickets:
            raise ValueError(f"engine: ticket is {ticket}; allowed: one of the {self._tickets} that were given")
        if ticket in self._jobs:
            job = self._jobs[ticket]
            index = len(job.logprobs)
            self._cancellations += 1
            self._unsent.append(
                Event(
                    ticket, NO_TOKEN, float("nan"), index, finished="cancelled", completion=self._end(job, "cancelled")
                )
            )

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """The answers to some requests, in their order. None is begun if one of them cannot run."""
        if not self.idle:
            raise ValueError(f"engine: {len(self._jobs)} requests are under way; allowed: generate when idle")
        for request in requests:
            self.check(request)
        tickets = [self.submit(request) for request in requests]
        found: dict[int, Completion] = {}
        while not self.idle:
            found |= {event.ticket: event.completion for event in self.step() if event.completion is not None}
        return [found[ticket] for ticket in tickets]

    def use(self, model: Model) -> None:
        """Go on with other weights of the same shape. What was computed with the old ones is forgotten."""
        if begun := self._begun():
            raise ValueError(f"engine: {begun} requests have begun; allowed: other weights when none has")
        old = self.model
        if (model.config, model.dtype, model.device) != (old.config, old.dtype, old.device):
            raise ValueError(
                f"engine: the new model is {model.dtype} on {model.device}, the old {old.dtype} on {old.device};"
                " allowed: the same, and the same config"
            )
        self._forget(_without_sums(model))

    def step(self) -> list[Event]:
        """One forward pass over a mixed batch: chunks of prompts, and one token of every answer. A step that fails
        leaves every request as it was, to be tried again."""
        self._notice_new_weights()
        planned = self._scheduler.plan()
        events = []
        if planned:
            with torch.no_grad(), self._at_rest():
                events = self._pass(planned)
        events, self._unsent = self._unsent + events, []
        return events

    def _at_rest(self) -> AbstractContextManager[None]:
        """With torch's own threads out of the way, unless the operators are torch's."""
        return torch_at_rest(self.model.device) if self.model.operators == OURS else nullcontext()

    def _pass(self, planned: list[tuple[Job, int]]) -> list[Event]:
        passed = self._run(planned)
        hidden = passed.hidden if isinstance(passed, Decoded) else passed
        scores = self._prompt_scores(planned, hidden)
        rows, drawing, end = [], [], 0
        for job, count in planned:
            end += count
            if count == job.pending:
                rows.append(end - 1)
                drawing.append(job)
        if isinstance(passed, Decoded) and len(rows) == end:
            drawn = self._drawn(drawing, passed.logits, (passed.tokens, passed.logprobs))
        else:
            drawn = self._drawn(drawing, self.model.logits(hidden[rows])) if drawing else []
        # Nothing is written down before everything is known.
        for (job, count), scored in zip(planned, scores, strict=True):
            self._scheduler.commit(job, count)
            job.prompt_logprobs.extend(logprob for logprob, _ in scored)
            job.prompt_top.extend(top for _, top in scored)
        self._steps += 1
        self._computed += end
        return [self._told(job, one) for job, one in zip(drawing, drawn, strict=True)]

    def _run(self, planned: list[tuple[Job, int]]) -> Decoded | Tensor:
        """One token of every request, and what comes of it; or the hidden states of all tokens."""
        device, jobs, counts = self.model.device, [job for job, _ in planned], [count for _, count in planned]
        held = [job.computed for job in jobs]
        if self.decode_step != NONE and max(counts) == 1:
            step, ids = self._decode_steps.step(len(jobs), max(held) + 1), [job.tokens[job.computed] for job in jobs]
            return step.run(ids, held, [job.table for job in jobs], Choices.of(jobs))
        tables = Tables.of([job.table for job in jobs], held, counts, self._scheduler.page_size, device)
        for cache in self._caches:
            cache.at(tables)
        ids = [token for job, count in planned for token in job.tokens[job.computed : job.computed + count]]
        positions = [place for first, count in zip(held, counts, strict=True) for place in range(first, first + count)]
        batch = Batch(
            ids=torch.tensor(ids).to(device), positions=torch.tensor(positions).to(device), lengths=tuple(counts)
        )
        return self.model.hidden(batch, self._caches)

    def _prompt_scores(self, planned: list[tuple[Job, int]], hidden: Tensor) -> list[list[Score]]:
        """For each job the logprobs of the prompt's tokens that come after those just computed, if they are wanted,
        each with the likeliest tokens in its place."""
        rows: list[int] = []
        targets: list[int] = []
        others: list[int] = []
        wanted, start = [], 0
        for job, count in planned:
            prompt, first = job.request.prompt, max(job.computed, len(job.prompt_logprobs))
            places = range(first, min(job.computed + count, len(prompt) - 1)) if job.request.score_prompt else range(0)
            rows.extend(start + place - job.computed for place in places)
            targets.extend(prompt[place + 1] for place in places)
            others.extend(job.request.top_logprobs for _ in places)
            wanted.append(len(places))
            start += count
        if not rows:
            return [[] for _ in planned]
        hidden = hidden[rows]
        logprobs = self.model.logprobs(hidden, torch.tensor(targets).to(hidden.device)).tolist()
        scored = zip(logprobs, likeliest(self.model, hidden, others), strict=True)
        return [[next(scored) for _ in range(count)] for count in wanted]

    def _drawn(self, jobs: list[Job], logits: Tensor, drawn: tuple[Tensor, Tensor] | None = None) -> list[Drawn]:
        try:
            return draw(self.model, logits, jobs, drawn)
        except NotFiniteError as error:
            places = ", ".join(f"{jobs[row].ticket} at position {len(jobs[row].tokens)}" for row in error.rows)
            for row in error.rows:
                self.cancel(jobs[row].ticket)
            told = f"logits are not finite, or not over the temperature, for request {places}"
            raise ArithmeticError(f"engine: {told}; cancelled, the other requests continue") from error

    def _told(self, job: Job, drawn: Drawn) -> Event:
        """A token is the job's, and the event that says so."""
        job.tokens.append(drawn.token)
        job.logprobs.append(drawn.logprob)
        self._tokens += 1
        index, request = len(job.logprobs) - 1, job.request
        stops, full = drawn.token in request.stop, index + 1 == request.max_tokens
        finished: Finish | None = "stop" if stops else "length" if full else None
        scored = request.score_prompt and index == 0
        first, top = (tuple(job.prompt_logprobs), tuple(job.prompt_top)) if scored else (None, None)
        ended: dict[str, Any] = {} if finished is None else {"completion": self._end(job, finished)}
        return Event(job.ticket, drawn.token, drawn.logprob, index, drawn.top, finished, first, top, **ended)

    def _end(self, job: Job, finished: Finish) -> Completion:
        self._scheduler.remove(job)
        del self._jobs[job.ticket]
        return Completion(
            tokens=tuple(job.tokens[len(job.request.prompt) :]),
            logprobs=tuple(job.logprobs),
            prompt_logprobs=tuple(job.prompt_logprobs) if job.request.score_prompt else None,
            finished=finished,
            cached_tokens=job.cached_tokens or 0,
        )

    def _weights_written(self) -> list[tuple[int, int]]:
        """Another list whenever an optimizer writes into a weight, or another one takes its place."""
        return [(weight.data_ptr(), weight._version) for weight in self.model.weights.values()]

    def _notice_new_weights(self) -> None:
        """Keys made by weights that are gone must not be shared, nor half of an answer be theirs."""
        if self._weights_written() == self._weights_seen:
            return
        if begun := self._begun():
            raise ValueError(f"engine: the weights changed and {begun} requests have begun; allowed: when none has")
        self._forget(self.model)

    def _begun(self) -> int:
        """Requests with keys, or with a part of an answer that outlived them, made by the present weights."""
        return sum(bool(job.table or job.logprobs or job.prompt_logprobs) for job in self._jobs.values())

    def _forget(self, model: Model) -> None:
        """Whatever belongs to weights that are gone: keys, and addresses."""
        self._decode_steps.use(model)
        self.model = model
        self._weights_seen = self._weights_written()
        self._pool.forget()
