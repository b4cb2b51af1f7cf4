"""One request from its prompts to its last byte: submitted, listened to, written out whole or as a stream.

However it ends, by a stop string, a client that left or an error, what the engine still holds of it is cancelled."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from samebits.infer.request import Event, Request
from samebits.infer.server.answers import Heading, Scored, usage
from samebits.infer.server.limits import RefusedError
from samebits.infer.server.loop import EngineLoop, Failed, Job
from samebits.infer.server.metrics import Metrics
from samebits.infer.server.schema import Asked
from samebits.infer.server.text import Writer
from samebits.model.tokenizer import Stream, Tokenizer

STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
LEFT = "the client left"
LINE_ENDS = "\u0085\u2028\u2029"
"""Unicode's, at which many clients cut a stream of lines. JSON escapes those below 32 by itself."""


class GoneError(Exception):
    """The client left, or no longer reads."""


class Choice:
    """One answer as it grows."""

    def __init__(self, index: int, request: Request, asked: Asked, tokenizer: Tokenizer) -> None:
        self.index, self._request, self._asked, self._tokenizer = index, request, asked, tokenizer
        self._writer = Writer(tokenizer, asked.stops, request.stop)
        self._start = 0
        self.text = ""
        self.scored: list[Scored] | None = None if asked.logprobs is None else []
        self.tokens = 0
        self.cached = 0

    @property
    def finish(self) -> str | None:
        return "length" if self._asked.max_tokens == 0 and self.tokens else self._writer.finish

    def take(self, event: Event) -> tuple[str, list[Scored] | None]:
        """The text and the scored tokens that an event adds; the first adds the prompt's where that was asked for."""
        text, scored = self._echo(event) if event.index == 0 and self._asked.echo else ("", [])
        self.tokens += 1
        if self._asked.max_tokens != 0:
            place = self._start + self._writer.offset
            scored.append(Scored(token=event.token, logprob=event.logprob, top=event.top, offset=place))
            text += self._writer.feed(event)
        if event.completion is not None:
            self.cached = event.completion.cached_tokens
        self.text += text
        if self.scored is None:
            return text, None
        self.scored += scored
        return text, scored

    def _echo(self, event: Event) -> tuple[str, list[Scored]]:
        """The prompt's text and tokens."""
        stream, text, scored = Stream(self._tokenizer), "", []
        unscored = [None] * len(self._request.prompt)
        logprobs = unscored if event.prompt_logprobs is None else [None, *event.prompt_logprobs]
        tops = unscored if event.prompt_top is None else [None, *event.prompt_top]
        for token, logprob, top in zip(self._request.prompt, logprobs, tops, strict=True):
            scored.append(Scored(token=token, logprob=logprob, top=top or (), offset=len(text)))
            text += stream.feed(token)
        text += stream.finish()
        self._start = len(text)
        return text, scored


class Exchange:
    """An ASGI application for one request that was found to be within all limits."""

    def __init__(
        self,
        asked: Asked,
        requests: list[Request],
        heading: Heading,
        loop: EngineLoop,
        metrics: Metrics,
        headers: dict[str, str],
    ) -> None:
        self._asked, self._requests, self._heading, self._loop, self._metrics = asked, requests, heading, loop, metrics
        self._headers = headers
        self._choices = [Choice(n, request, asked, heading.tokenizer) for n, request in enumerate(requests)]
        self._inbox: asyncio.Queue[tuple[int, Event | Failed] | None] = asyncio.Queue()
        self._jobs = [Job(request=request, deliver=partial(self._deliver, n)) for n, request in enumerate(requests)]
        self._started = time.perf_counter()

    def _deliver(self, index: int, message: Event | Failed) -> None:
        self._inbox.put_nowait((index, message))

    def submit(self) -> None:
        self._loop.submit(self._jobs)
        self._metrics.prompt_tokens.inc(sum(self._prompts()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watcher = asyncio.create_task(self._watch(receive))
        try:
            if self._asked.stream:
                await self._stream(send)
            else:
                async for _ in self._events():
                    pass
                await Response(_json(self._whole()), headers={"content-type": "application/json", **self._headers})(
                    scope, receive, send
                )
        finally:
            watcher.cancel()
            self._loop.cancel(self._jobs, LEFT)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._inbox.put_nowait(None)

    async def _events(self) -> AsyncIterator[tuple[Choice, Event]]:
        """Until every choice is finished; a stop string finishes one before the engine knows."""
        left = len(self._choices)
        first = True
        while left:
            message = await self._inbox.get()
            if message is None:
                raise GoneError
            choice, event = self._choices[message[0]], message[1]
            if choice.finish is not None:
                continue
            if isinstance(event, Failed):
                raise RefusedError(event.status, event.reason)
            if first:
                self._metrics.first_token.observe(time.perf_counter() - self._started)
                first = False
            self._metrics.completion_tokens.inc()
            self._latest = choice.take(event)
            if choice.finish is not None:
                left -= 1
                if event.finished is None:
                    self._loop.cancel([self._jobs[choice.index]], "a stop string was met")
            yield choice, event

    async def _stream(self, send: Send) -> None:
        """The status waits for the first token, so that a refusal still has its own."""
        begun = False
        try:
            async for choice, event in self._events():
                if not begun:
                    headers = [(name.encode(), value.encode()) for name, value in self._headers.items()]
                    await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS + headers})
                    begun = True
                text, scored = self._latest
                if text or scored or choice.finish is not None or event.index == 0:
                    piece = self._heading.piece(choice.index, text, scored, choice.finish, first=event.index == 0)
                    await self._chunk(send, self._heading.document([piece], chunk=True, usage=None))
        except RefusedError as refused:
            if not begun:
                raise
            await self._chunk(send, refused.document)
        else:
            if self._asked.include_usage:
                await self._chunk(send, self._heading.document([], chunk=True, usage=self._usage()))
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _chunk(self, send: Send, document: dict[str, Any]) -> None:
        await send({"type": "http.response.body", "body": b"data: " + _json(document) + b"\n\n", "more_body": True})

    def _whole(self) -> dict[str, Any]:
        choices = [self._heading.choice(each.index, each.text, each.scored, each.finish) for each in self._choices]
        return self._heading.document(choices, chunk=False, usage=self._usage())

    def _prompts(self) -> list[int]:
        return [len(request.prompt) for request in self._requests[:: self._asked.n]]

    def _usage(self) -> dict[str, Any]:
        tokens = 0 if self._asked.max_tokens == 0 else sum(choice.tokens for choice in self._choices)
        return usage(self._prompts(), tokens, sum(choice.cached for choice in self._choices[:: self._asked.n]))


def _json(document: dict[str, Any]) -> bytes:
    written = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in LINE_ENDS:
        written = written.replace(character, f"\\u{ord(character):04x}")
    return written.encode()
