"""The process that serves: one socket, one asyncio loop, one engine thread, and an orderly end.

The first SIGTERM or SIGINT lets running answers end within their grace and refuses new ones with 503; a second ends at
once. Clients that neither speak nor read are hung up on."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Final

import uvicorn

from samebits.infer.server.app import Service, application
from samebits.infer.server.protocol import protocol

# After the last answer: how long responses may take to leave, to clients that read slowly.
FLUSH_SECONDS: Final = 5
# How long a thread that reads a long body may keep the one that talks to clients waiting.
SWITCH_SECONDS: Final = 0.001


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes any that is free."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        raise ValueError(f"serve: {host}:{port} cannot be listened on: {error}") from error


def serve(service: Service, listening: socket.socket, *, grace: float, ready: Callable[[str], None]) -> None:
    """Serves until a signal, then returns. `ready` is given the address once requests are taken."""
    sys.setswitchinterval(SWITCH_SECONDS)
    asyncio.run(Server(service, grace, ready).run_on(listening))


class Server(uvicorn.Server):
    """uvicorn's server with an end in two stages."""

    def __init__(self, service: Service, grace: float, ready: Callable[[str], None]) -> None:
        super().__init__(
            uvicorn.Config(
                application(service),
                http=protocol(service.limits),
                ws="none",
                lifespan="off",
                log_level="error",
                access_log=False,
                server_header=False,
                timeout_keep_alive=service.limits.idle_seconds,
                timeout_graceful_shutdown=FLUSH_SECONDS,
                limit_concurrency=service.limits.connections + 1,
            )
        )
        self._service, self._grace, self._ready = service, grace, ready
        self._ending: asyncio.Task[None] | None = None

    async def run_on(self, listening: socket.socket) -> None:
        self._home = asyncio.get_running_loop()
        self._service.loop.start()
        try:
            await self.serve(sockets=[listening])
        finally:
            self._service.intake.stop()
            await self._service.loop.stop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        host, port = (sockets or [])[0].getsockname()[:2]
        self._ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.end()

    def end(self) -> None:
        """What a signal does, from any thread."""
        self._home.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if self._ending is not None:
            self.should_exit = self.force_exit = True
            return
        self._ending = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        await self._service.drain(self._grace)
        self._service.intake.stop()
        self.should_exit = True
