"""HTTP/1.1 on one connection: strict about where a message begins and ends, and impatient with those who hang.

Where two readings of one message are possible, a server and what stands before it may differ, and a request hides in
another: such messages are refused, and the connection ends."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from samebits.infer.server.limits import Limits, RefusedError

_END: Final = re.compile(rb"\n\r?\n")


def framing_fault(data: bytes) -> str | None:
    """What makes the head of a message doubtful, as far as it has come; None where nothing does."""
    data = data.lstrip(b"\r\n")
    end = _END.search(data)
    *lines, _ = (data[: end.end()] if end else data).split(b"\n")
    if any(not line.endswith(b"\r") for line in lines):
        return "a line of the head ends without a carriage return"
    if any(line[:1] in (b" ", b"\t") for line in lines):
        return "a header is folded over two lines"
    named = [line.partition(b":") for line in lines[1:]]
    lengths = [value for name, _, value in named if name.lower() == b"content-length"]
    codings = [value for name, _, value in named if name.lower() == b"transfer-encoding"]
    if len(lengths) > 1 or any(b"," in value for value in lengths):
        return "there is more than one Content-Length"
    if lengths and codings:
        return "there are Content-Length and Transfer-Encoding"
    if codings and (len(codings) > 1 or not lines[0].endswith(b" HTTP/1.1\r")):
        return "there is Transfer-Encoding twice, or not in HTTP/1.1"
    return None


class Deadline:
    """Something that happens unless it is cleared in time. What has begun to run is not begun anew."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float, action: Callable[[], None]) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(seconds, action)

    def clear(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def protocol(limits: Limits) -> type[H11Protocol]:
    """HTTP that hangs up on clients who do not say what they want, or do not read what they get, in time."""

    class Impatient(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            self._asking, self._reading = Deadline(self.loop), Deadline(self.loop)
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def handle_events(self) -> None:
            """Before h11, which is generous, has read the head of a message."""
            if self.conn.their_state is h11.IDLE:
                fault = framing_fault(self.conn.trailing_data[0])
                if fault is not None:
                    self.send_400_response(fault)
                    return
            super().handle_events()

        def send_400_response(self, msg: str) -> None:
            """As every other refusal; where an answer is under way already, there is nothing left to say."""
            if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE) or self.transport.is_closing():
                self.transport.abort()
                return
            refused = RefusedError(400, f"{msg}; allowed: HTTP that can be read in one way only")
            body = json.dumps(refused.document).encode()
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            for event in (
                h11.Response(status_code=400, reason="Bad Request", headers=headers),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
            self.transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            self._asking.clear()
            self._reading.clear()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._reading.set(limits.send_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            self._reading.clear()
            super().resume_writing()

        def timeout_keep_alive_handler(self) -> None:
            """What is not read of the last response would keep a closed connection open."""
            super().timeout_keep_alive_handler()
            self.loop.call_later(limits.send_seconds, self.transport.abort)

        def _watch(self) -> None:
            """Between requests the base's own timer is at work until the first byte comes."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._asking.clear()
            else:
                self._asking.set(limits.header_seconds, self._hang_up)

        def _hang_up(self) -> None:
            if self.cycle is None or self.cycle.response_complete:
                self.transport.abort()

    return Impatient
