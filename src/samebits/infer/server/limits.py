"""What a request may ask for at most, and how a refusal is said. Everything is checked before anything is allocated.

Knows numbers and OpenAI's error object; neither HTTP, JSON nor an engine."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The most of everything that a stranger could ask for. None of these decides a bit."""

    body_bytes: int = 1 << 20
    """Bytes of a request's body."""
    short_bytes: int = 1 << 14
    """Bytes of a body that is short: it does not wait for long ones."""
    waiting_bytes: int = 1 << 22
    """Bytes of all bodies that come or wait to be read, beyond `short_bytes` of each."""
    waiting: int = 128
    """Requests that wait to be read, in each of four queues: short and long, texts and chats."""
    depth: int = 16
    """Brackets within brackets in its JSON."""
    messages: int = 256
    """Messages of a chat."""
    prompt_tokens: int = 4096
    """Tokens of one prompt."""
    max_tokens: int = 1024
    """Tokens of one answer."""
    choices: int = 16
    """Answers to one request: prompts times n."""
    stops: int = 16
    """Stop strings."""
    stop_characters: int = 128
    """Characters of a stop string."""
    top_logprobs: int = 20
    """Other tokens listed beside each."""
    queue: int = 256
    """Answers that run or wait at one time, of all requests together."""
    connections: int = 1024
    """Clients that are connected at one time, whatever they do."""
    header_seconds: int = 10
    """How long a client may take to say what it wants."""
    body_seconds: int = 10
    """How long a client may take to send a body."""
    send_seconds: int = 30
    """How long a client may leave what is sent to it unread."""
    idle_seconds: int = 20
    """How long a connection is kept between two requests. Clients of Python keep theirs for five seconds: a server that
    hung up first, or at that moment, would reset a request on its way."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or value < 1:
                raise ValueError(f"limits: {field.name} is {value!r}; allowed: a whole number, at least 1")

    @property
    def items(self) -> int:
        """Commas in a body's JSON: as many token numbers as all its prompts may have, and some for all else."""
        return self.choices * self.prompt_tokens + 1024

    def check(self, limit: str, found: int, what: str, param: str | None, status: int = 400) -> None:
        """Refuse what is more than a limit, by its name."""
        most = getattr(self, limit)
        if found > most:
            code = "context_length_exceeded" if limit == "prompt_tokens" else None
            raise RefusedError(status, f"{what} is {found}; allowed: at most {most}", param=param, code=code)


# OpenAI's word for each kind of status.
TYPES = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error", 503: "server_error"}


class RefusedError(Exception):
    """A request that is not carried out: an HTTP status and one line that says why."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.retry_after = retry_after

    @property
    def document(self) -> dict[str, Any]:
        """OpenAI's error object."""
        kind = TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}
