"""The HTTP application: what is asked, and which part answers.

Everything that could be refused is refused here, before the engine hears of it."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from samebits.infer.engine import Engine
from samebits.infer.request import Request, Sampling
from samebits.infer.server import schema
from samebits.infer.server.answers import Heading
from samebits.infer.server.exchange import Exchange
from samebits.infer.server.guard import PATHS, Access, Guard, as_json, refusal
from samebits.infer.server.intake import RETRY_SECONDS, Body, Intake
from samebits.infer.server.limits import Limits, RefusedError
from samebits.infer.server.loop import EngineLoop
from samebits.infer.server.metrics import Metrics
from samebits.infer.server.schema import Asked
from samebits.model.tokenizer import Tokenizer, TooLongError

PAGE: Final = Path(__file__).with_name("chat.html")
# The page talks to nobody but this server, and needs nothing from anywhere.
PAGE_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'"
)


@dataclass(kw_only=True)
class Service:
    """A model that is served, and the state of serving it."""

    engine: Engine
    tokenizer: Tokenizer
    name: str
    context: int
    """Tokens of a prompt and its answer together."""
    limits: Limits = field(default_factory=Limits)
    access: Access = field(default_factory=Access)

    def __post_init__(self) -> None:
        self.vocabulary = self.engine.model.config.vocab_size
        self.stop = frozenset((*self.tokenizer.eos, *self.engine.model.config.eos_token_id))
        self.intake = Intake(self.limits)
        self.loop = EngineLoop(self.engine)
        self.metrics = Metrics(lambda: self.loop.statistics)
        self.created = int(time.time())
        self.draining = False

    async def drain(self, seconds: float) -> None:
        """No new requests; those that run may end, and are cancelled where they do not in time."""
        self.draining = True
        try:
            await asyncio.wait_for(self.loop.quiet.wait(), seconds)
        except TimeoutError:
            self.loop.cancel(tuple(self.loop.open), "the server is stopping")
            await self.loop.quiet.wait()

    def unavailable(self) -> str | None:
        return "the server is stopping" if self.draining else self.loop.failure

    def check_queue(self, count: int) -> None:
        if (reason := self.unavailable()) is not None:
            raise RefusedError(503, reason, retry_after=RETRY_SECONDS)
        if len(self.loop.open) + count > self.limits.queue:
            busy = f"{len(self.loop.open)} answers run or wait, {count} more are asked for"
            allowed = f"at most {self.limits.queue} at one time"
            raise RefusedError(429, f"{busy}; allowed: {allowed}", code="queue_full", retry_after=RETRY_SECONDS)

    def prepare(self, body: bytes, *, chat: bool) -> tuple[Asked, list[Request]]:
        """What a body asks for, as the engine will hear it. Takes a while: for a thread of its own."""
        asked = (schema.chat if chat else schema.completion)(schema.parse(body, self.limits), self.limits)
        return asked, self.requests(asked)

    def requests(self, asked: Asked) -> list[Request]:
        """What the engine is asked for: for each prompt, n answers, which the seed and their number tell apart."""
        if asked.model != self.name:
            raise RefusedError(
                404, f"no model is called {asked.model!r}; known: {self.name}", param="model", code="model_not_found"
            )
        seed = secrets.randbits(63) if asked.seed is None else asked.seed
        sampling = Sampling(temperature=asked.temperature, top_k=asked.top_k, top_p=asked.top_p, seed=seed)
        found = []
        for tokens in self._prompts(asked):
            most = self._most(asked, len(tokens))
            found += [
                Request(
                    prompt=tokens,
                    max_tokens=most,
                    sampling=sampling,
                    stop=self.stop,
                    number=number,
                    score_prompt=asked.echo and asked.logprobs is not None,
                    top_logprobs=asked.logprobs or 0,
                )
                for number in range(asked.n)
            ]
        return found

    def _prompts(self, asked: Asked) -> list[tuple[int, ...]]:
        param, most = "messages" if asked.messages else "prompt", self.limits.prompt_tokens
        try:
            prompts = (
                [tuple(self.tokenizer.conversation(asked.messages, most=most))]
                if asked.messages
                else [
                    tuple(self.tokenizer.encode(each, most=most)) if isinstance(each, str) else each
                    for each in asked.prompts
                ]
            )
        except TooLongError as error:
            raise RefusedError(400, str(error), param=param, code="context_length_exceeded") from None
        except ValueError as error:
            raise RefusedError(400, str(error), param=param) from None
        for tokens in prompts:
            if not tokens:
                raise RefusedError(400, f"{param} has 0 tokens; allowed: at least 1", param=param)
            if not 0 <= min(tokens) <= max(tokens) < self.vocabulary:
                wrong = next(token for token in tokens if not 0 <= token < self.vocabulary)
                raise RefusedError(400, f"{param} has token {wrong}; allowed: 0 to {self.vocabulary - 1}", param=param)
            self.limits.check("prompt_tokens", len(tokens), "the number of tokens of a prompt", param)
        return prompts

    def _most(self, asked: Asked, prompt: int) -> int:
        """How many tokens an answer may have; scoring a prompt alone takes a step, and with it a token."""
        left = self.context - prompt
        most = min(self.limits.max_tokens, left) if asked.max_tokens is None else max(1, asked.max_tokens)
        if most < 1 or most > left:
            wanted = f"{prompt} tokens of the prompt and {max(1, most)} of the answer are {prompt + max(1, most)}"
            raise RefusedError(
                400, f"{wanted}; allowed: at most {self.context}", param="max_tokens", code="context_length_exceeded"
            )
        return most


def application(service: Service) -> Starlette:
    """The routes of a service. Its engine loop is started by whoever runs this."""
    routes = [
        Route("/", _page),
        Route("/health", _health),
        Route("/metrics", _metrics),
        Route("/v1/models", _models),
        Route("/v1/completions", _completions, methods=["POST"]),
        Route("/v1/chat/completions", _chat, methods=["POST"]),
    ]
    handlers: dict[Any, Any] = {RefusedError: _on_refused, HTTPException: _on_http, Exception: _on_fault}
    guard = Middleware(Guard, access=service.access, limits=service.limits, count=service.metrics.count)
    app = Starlette(routes=routes, middleware=[guard], exception_handlers=handlers)
    app.state.service = service
    return app


async def _completions(http: HttpRequest) -> ASGIApp:
    return await _answer(http, chat=False)


async def _chat(http: HttpRequest) -> ASGIApp:
    return await _answer(http, chat=True)


async def _answer(http: HttpRequest, *, chat: bool) -> ASGIApp:
    """Checked to the end, then submitted; nothing can come between the check of the queue and the submission."""
    service: Service = http.app.state.service
    service.check_queue(1)
    with service.intake.body() as body:
        await _read(http, body, service.limits)
        asked, requests = await service.intake.run(body, partial(service.prepare, chat=chat), chat=chat)
    service.check_queue(len(requests))
    identity = f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}"
    heading = Heading(id=identity, created=int(time.time()), model=service.name, chat=chat, tokenizer=service.tokenizer)
    exchange = Exchange(asked, requests, heading, service.loop, service.metrics, {"x-request-id": identity})
    exchange.submit()
    return exchange


async def _read(http: HttpRequest, body: Body, limits: Limits) -> None:
    # A page of another site can send a form or plain text here without asking; JSON it cannot.
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RefusedError(415, f"the body's type is {kind[:64]!r}; allowed: application/json")
    body.announce(int(http.headers.get("content-length", "0")))
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in http.stream():
                body.add(chunk)
    except TimeoutError:
        raise RefusedError(408, f"the body has not come in {limits.body_seconds} seconds") from None


async def _models(http: HttpRequest) -> Response:
    service: Service = http.app.state.service
    about = {
        "chat": service.tokenizer.template is not None,
        "context": service.context,
        "max_tokens": min(service.limits.max_tokens, service.context),
        "queue": service.limits.queue,
    }
    entry = {
        "id": service.name,
        "object": "model",
        "created": service.created,
        "owned_by": "samebits",
        "samebits": about,
    }
    return as_json({"object": "list", "data": [entry]})


async def _health(http: HttpRequest) -> Response:
    service: Service = http.app.state.service
    reason = service.unavailable()
    return as_json({"status": "ok" if reason is None else reason}, 200 if reason is None else 503)


async def _metrics(http: HttpRequest) -> Response:
    service: Service = http.app.state.service
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


async def _page(http: HttpRequest) -> Response:
    headers = {"content-security-policy": PAGE_POLICY, "x-content-type-options": "nosniff", "cache-control": "no-cache"}
    return Response(PAGE.read_bytes(), media_type="text/html", headers=headers)


async def _on_refused(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    return refusal(error)


async def _on_http(http: HttpRequest, error: Exception) -> Response:
    """No such path, or not by this method."""
    assert isinstance(error, HTTPException)
    allowed = ", ".join(PATHS) if error.status_code == 404 else (error.headers or {}).get("Allow", "")
    what = f"{http.method} {http.url.path[:128]}: {error.detail}"
    return refusal(RefusedError(error.status_code, f"{what}; allowed: {allowed}"))


async def _on_fault(http: HttpRequest, error: Exception) -> Response:
    return refusal(RefusedError(500, f"the server has a fault: {type(error).__name__}"))
