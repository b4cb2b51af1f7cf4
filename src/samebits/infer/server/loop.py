"""The one thread that owns the engine: it steps while there is work, sleeps while there is none, and tells of tokens.

Jobs come from and go back to one asyncio loop. A job's place in the queue is given back only when the engine has let go
of it. Knows neither HTTP nor text."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue

from samebits.infer.engine import Engine
from samebits.infer.request import Event, Request


@dataclass(frozen=True, slots=True)
class Failed:
    """A job that ended without a last token: the engine refused it, let go of it, or broke."""

    status: int
    reason: str


@dataclass(eq=False, kw_only=True, slots=True)
class Job:
    """A request on its way through the engine."""

    request: Request
    deliver: Callable[[Event | Failed], None]
    """Called in the asyncio loop, for each token and at the end."""
    ticket: int | None = None
    """Known to the engine's thread alone."""
    done: bool = False
    """Known to the asyncio loop alone."""


class EngineLoop:
    """Jobs in, events out. Every method and attribute without an underscore is for the asyncio loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._jobs: dict[int, Job] = {}
        self._letters: list[tuple[Job, Event | Failed]] = []
        self._trouble = "the engine cancelled the request"
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.statistics = engine.statistics()
        """As of the last step."""
        self.failure: str | None = None
        """Why the engine runs no more."""
        self.open: set[Job] = set()
        """Jobs that the engine has not let go of."""
        self.quiet = asyncio.Event()
        """Set while nothing is open."""
        self.quiet.set()

    def start(self) -> None:
        self._home = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Ends the thread after the step that it is in."""
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join)

    def submit(self, jobs: Sequence[Job]) -> None:
        self.open.update(jobs)
        self.quiet.clear()
        for job in jobs:
            self._commands.put(partial(self._submit, job))

    def cancel(self, jobs: Sequence[Job], reason: str) -> None:
        """Jobs that are done already are left alone."""
        for job in jobs:
            if not job.done:
                self._commands.put(partial(self._cancel, job, Failed(503, reason)))

    def _dispatch(self, letters: list[tuple[Job, Event | Failed]]) -> None:
        for job, message in letters:
            if job.done:
                continue
            job.done = isinstance(message, Failed) or message.finished is not None
            if job.done:
                self.open.discard(job)
            job.deliver(message)
        if not self.open:
            self.quiet.set()

    # From here on: the engine's thread.

    def _run(self) -> None:
        try:
            while self._take():
                self._step()
                self._post()
        # Whatever breaks, nobody is left waiting.
        except Exception as error:
            self._break(" ".join(f"{type(error).__name__}: {error}".split()))

    def _step(self) -> None:
        try:
            events = self._engine.step()
        except ArithmeticError as error:
            # The engine let go of those whose numbers are wrong; its next step says which.
            self._trouble = str(error)
            return
        for event in events:
            self._say(event)

    def _take(self) -> bool:
        """Carries out what was asked since the last step; waits while the engine has nothing to do. False: stop."""
        while True:
            if self._engine.idle:
                self._post()
            try:
                command = self._commands.get(block=self._engine.idle)
            except Empty:
                return True
            if command is None:
                return False
            command()

    def _submit(self, job: Job) -> None:
        if self.failure is not None:
            self._letters.append((job, Failed(503, self.failure)))
            return
        try:
            job.ticket = self._engine.submit(job.request)
        except ValueError as error:
            self._letters.append((job, Failed(400, str(error))))
        else:
            self._jobs[job.ticket] = job

    def _cancel(self, job: Job, reason: Failed) -> None:
        if job.ticket is not None and self._jobs.pop(job.ticket, None) is not None:
            self._engine.cancel(job.ticket)
            self._letters.append((job, reason))

    def _say(self, event: Event) -> None:
        """Of a job that was cancelled the engine may still speak; nobody listens."""
        job = self._jobs.get(event.ticket)
        if job is None:
            return
        if event.finished is not None:
            del self._jobs[event.ticket]
        cancelled = event.finished == "cancelled"
        self._letters.append((job, Failed(500, self._trouble) if cancelled else event))

    def _post(self) -> None:
        self.statistics = self._engine.statistics()
        self._send()

    def _send(self) -> None:
        """One crossing for all that a step had to say."""
        if self._letters:
            self._home.call_soon_threadsafe(self._dispatch, self._letters)
            self._letters = []

    def _break(self, reason: str) -> None:
        """The engine's state is unknown: every job ends, those that come later too."""
        self.failure = f"the engine stopped: {reason}"
        self._letters.extend((job, Failed(500, self.failure)) for job in self._jobs.values())
        self._jobs.clear()
        self._send()
        while (command := self._commands.get()) is not None:
            command()
            self._send()
