"""Around every request: by which name it came, with which key, how long a body it claims, and how it ended.

Also how a refusal is written. Knows nothing of what is asked."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from samebits.infer.server import hosts
from samebits.infer.server.exchange import GoneError
from samebits.infer.server.limits import Limits, RefusedError

OPEN_PATHS: Final = ("/", "/health")
PATHS: Final = (*OPEN_PATHS, "/metrics", "/v1/models", "/v1/completions", "/v1/chat/completions")
# What is counted where a client left before it got an answer.
LEFT_STATUS: Final = 499
# How long a client may go on to send what is not wanted. Hung up at once, its network would throw away our answer.
LINGER_SECONDS: Final = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Who may ask."""

    api_key: str | None = None
    hosts: tuple[str, ...] = ()
    """Names by which the server may be asked, besides those of this machine and the address that was asked."""

    def __post_init__(self) -> None:
        if self.api_key == "":
            raise ValueError("serve: the API key is empty; allowed: at least one character, or none at all")
        for name in self.hosts:
            if hosts.name_of(name) is None and hosts.name_of(f"[{name}]") is None:
                raise ValueError(f"serve: an allowed host is {name[:64]!r}; allowed: a name or an address")

    def check(self, scope: Scope) -> None:
        self._check_host(scope)
        if self.api_key is not None and scope["path"] not in OPEN_PATHS:
            self._check_key(scope, self.api_key)

    def _check_host(self, scope: Scope) -> None:
        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        bound = scope["server"][0] if scope.get("server") else None
        if len(given) != 1 or not hosts.is_allowed(given[0], bound, self.hosts):
            allowed = "this machine's own names, the address that was asked, and those of --allowed-host"
            raise RefusedError(421, f"Host is {', '.join(given)[:128]!r}; allowed: {allowed}")

    def _check_key(self, scope: Scope, wanted: str) -> None:
        given = dict(scope["headers"]).get(b"authorization", b"")
        kind, _, key = given.partition(b" ")
        if kind.lower() != b"bearer" or not hmac.compare_digest(key.strip(), wanted.encode()):
            raise RefusedError(
                401,
                "the API key is missing or wrong; allowed: Authorization: Bearer and the server's key",
                code="invalid_api_key",
            )


class Guard:
    """Lets a request through to the application, or refuses it, and counts it by path and status."""

    def __init__(self, app: ASGIApp, access: Access, limits: Limits, count: Callable[[str, int], None]) -> None:
        self._app, self._access, self._limits, self._count = app, access, limits, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = LEFT_STATUS

        async def seen(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            try:
                self._access.check(scope)
                length = dict(scope["headers"]).get(b"content-length", b"0")
                self._limits.check("body_bytes", int(length), "the number of bytes of the body", None, 413)
            except RefusedError as refused:
                await refusal(refused)(scope, receive, seen)
            else:
                await self._app(scope, receive, seen)
        except (GoneError, ClientDisconnect):
            pass
        except Exception:
            status = 500
            raise
        finally:
            self._count(scope["path"] if scope["path"] in PATHS else "other", status)


class _Lingering(Response):
    """Is sent whole; ends when the client has sent all, has left or has had its time. Then the connection closes."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": bytes(self.body), "more_body": True})
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while (await receive()).get("more_body"):
                    pass
        except TimeoutError:
            pass
        await send({"type": "http.response.body", "body": b""})


def refusal(refused: RefusedError) -> Response:
    """Of a body that is not wanted nothing is kept, and the connection ends."""
    headers = {"connection": "close"} if refused.status in (408, 413) else {}
    if refused.retry_after is not None:
        headers["retry-after"] = str(refused.retry_after)
    if refused.status == 401:
        headers["www-authenticate"] = "Bearer"
    return as_json(refused.document, refused.status, headers, _Lingering if refused.status == 413 else Response)


def as_json(
    document: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None, kind: type[Response] = Response
) -> Response:
    return kind(json.dumps(document), status_code=status, media_type="application/json", headers=headers)
