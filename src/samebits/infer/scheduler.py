"""Who computes what in the next step: chunks of prompts and one token of every answer, as pages and budget allow.

Order of arrival decides all: the oldest goes first, and when pages run out the youngest gives its own back and computes
again later. Knows token ids, positions and pages; neither a model nor a number that a model makes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from samebits.infer.pages import ROOT, PagePool, chain_key
from samebits.infer.request import Request


@dataclass(slots=True, eq=False)
class Job:
    """A request on its way. Its tokens and their logprobs outlive the loss of its pages."""

    ticket: int
    request: Request
    number: int
    """What keys its draws beside seed and position."""
    tokens: list[int]
    """The prompt and what was drawn so far."""
    computed: int = 0
    """Tokens whose keys and values lie in the pages of the table."""
    table: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    """Names of its full pages, as far as they were asked for."""
    logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    prompt_top: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    """Beside each of these the most likely tokens; empty ones where none were asked for."""
    cached_tokens: int | None = None
    """Tokens of the prompt found computed when it was first admitted; None before."""

    @property
    def pending(self) -> int:
        """Tokens to compute before the next can be drawn."""
        return len(self.tokens) - self.computed

    @property
    def reusable(self) -> int:
        """How many of its first tokens need not be computed by itself: never the last, whose logits are wanted, and no
        token of the prompt whose successor is still to be scored."""
        scored = len(self.prompt_logprobs)
        if self.request.score_prompt and scored < len(self.request.prompt) - 1:
            return scored
        return len(self.tokens) - 1

    def key(self, page: int, page_size: int) -> bytes:
        """The name of its page number `page`, all of whose tokens are known."""
        while len(self.keys) <= page:
            start = len(self.keys) * page_size
            parent = self.keys[-1] if self.keys else ROOT
            self.keys.append(chain_key(parent, self.tokens[start : start + page_size]))
        return self.keys[page]


class Scheduler:
    """Requests that wait and run, both oldest first. `batch_tokens` and `batch_requests` bound a step; speed only."""

    def __init__(self, pool: PagePool, page_size: int, batch_tokens: int, batch_requests: int) -> None:
        self.pool, self.page_size = pool, page_size
        self.batch_tokens, self.batch_requests = batch_tokens, batch_requests
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.prefix_hits = self.prefix_tokens = self.preemptions = 0

    def plan(self) -> list[tuple[Job, int]]:
        """Who computes how many tokens now, pages in hand. A job whose last token is among them draws one."""
        # An answer's next token is never put off by somebody's long prompt.
        tokens_left = self.batch_tokens - sum(job.pending == 1 for job in self.running)
        planned: list[tuple[Job, int]] = []
        place = 0
        while place < len(self.running):
            job = self.running[place]
            count = 1 if job.pending == 1 else min(job.pending, tokens_left)
            if count and not self._grow(job, job.computed + count):
                break
            if count:
                planned.append((job, count))
            if job.pending > 1:
                tokens_left -= count
            place += 1
        planned.extend(self._admitted(tokens_left))
        return planned

    def commit(self, job: Job, count: int) -> None:
        """Tokens were computed: pages that this filled may be shared."""
        full = job.computed // self.page_size
        job.computed += count
        for page in range(full, job.computed // self.page_size):
            self.pool.name(job.table[page], job.key(page, self.page_size))

    def remove(self, job: Job) -> None:
        """It is done, or nobody wants it any more."""
        (self.running if job in self.running else self.waiting).remove(job)
        self._drop(job)

    def _drop(self, job: Job) -> None:
        self.pool.release(job.table)
        job.table, job.computed = [], 0

    def _grow(self, job: Job, tokens: int) -> bool:
        """Pages for that many tokens of the job; False if it was itself the youngest and had to give way."""
        while len(job.table) * self.page_size < tokens:
            page = self.pool.take()
            if page is not None:
                job.table.append(page)
                continue
            youngest = self.running.pop()
            self._drop(youngest)
            self.waiting.appendleft(youngest)
            self.preemptions += 1
            if youngest is job:
                return False
        return True

    def _admitted(self, tokens_left: int) -> Iterator[tuple[Job, int]]:
        """Waiting requests in order, as long as there are pages for all of their tokens and the next. Nobody is put
        out for them, and nobody overtakes."""
        while self.waiting and tokens_left > 0 and len(self.running) < self.batch_requests:
            job = self.waiting[0]
            self._find_prefix(job)
            if self._pages_for(len(job.tokens) + 1) - len(job.table) > self.pool.available:
                self._drop(job)
                return
            self._enter(self.waiting.popleft())
            count = min(job.pending, tokens_left)
            grown = self._grow(job, job.computed + count)
            assert grown, "its pages were counted before it was let in"
            tokens_left -= count
            yield job, count

    def _enter(self, job: Job) -> None:
        # Whoever lost its pages stands before those that came after it, so that both lists stay in order of arrival.
        self.running.append(job)
        self.prefix_hits += job.computed > 0
        self.prefix_tokens += job.computed
        if job.cached_tokens is None:
            job.cached_tokens = job.computed

    def _find_prefix(self, job: Job) -> None:
        """Full pages that somebody computed already."""
        for number in range(job.reusable // self.page_size):
            page = self.pool.share(job.key(number, self.page_size))
            if page is None:
                break
            job.table.append(page)
        job.computed = len(job.table) * self.page_size

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)
