"""Where a message begins and ends, and by which name it came: what can be read in two ways is refused, at once."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from tests.infer.serving import NAME, PATIENCE, Serving, serving

from samebits.infer.server import hosts
from samebits.infer.server.guard import Access
from samebits.infer.server.protocol import framing_fault

BODY = json.dumps({"model": NAME, "prompt": "The same bits", "max_tokens": 1}).encode()
FIRST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
SECOND = FIRST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as running:
        yield running


def post(*headers: str, host: str = "localhost", version: str = "1.1") -> bytes:
    lines = [f"POST /v1/completions HTTP/{version}", f"Host: {host}", "Content-Type: application/json", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def exchanged(server: Serving, data: bytes) -> bytes:
    """All that the server says before it closes the connection."""
    parts = urlsplit(server.url)
    found = b""
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=PATIENCE) as raw:
        raw.sendall(data)
        while piece := received(raw):
            found += piece
    return found


def received(raw: socket.socket) -> bytes:
    """Nothing where the server has hung up, be it with bytes unread."""
    try:
        return raw.recv(65536)
    except ConnectionResetError:
        return b""


CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
LENGTH = f"Content-Length: {len(BODY)}"
DOUBTFUL = {
    "both": post(LENGTH, "Transfer-Encoding: chunked") + CHUNKED,
    "both, other case": post("TRANSFER-encoding: chunked", f"content-LENGTH: {len(BODY)}") + CHUNKED,
    "two lengths": post(LENGTH, "Content-Length: 0") + BODY,
    "one length twice": post(LENGTH, LENGTH) + BODY,
    "a list of lengths": post(f"{LENGTH}, {len(BODY)}") + BODY,
    "no length": post("Content-Length: +5") + BODY,
    "a length below zero": post("Content-Length: -1") + BODY,
    "a length of many digits": post("Content-Length: " + "9" * 5000) + BODY,
    "two codings": post("Transfer-Encoding: chunked", "Transfer-Encoding: chunked") + CHUNKED,
    "another coding": post("Transfer-Encoding: gzip, chunked") + CHUNKED,
    "chunks in 1.0": post("Transfer-Encoding: chunked", version="1.0") + CHUNKED,
    "bare line feeds": post(LENGTH).replace(b"\r\n", b"\n") + BODY,
    "one bare line feed": post(LENGTH).replace(b"json\r\n", b"json\n") + BODY,
    "a folded header": post("X-A: b\r\n c", LENGTH) + BODY,
    "a space before the colon": post(f"Content-Length : {len(BODY)}") + BODY,
    "a null": post("X-A: \0", LENGTH) + BODY,
    "two hosts": post("Host: localhost", LENGTH) + BODY,
}


@pytest.mark.parametrize("name", DOUBTFUL)
def test_what_can_be_read_in_two_ways_ends_the_connection(server: Serving, name: str) -> None:
    """One refusal in OpenAI's error object; a second request on the connection is not answered."""
    said = exchanged(server, DOUBTFUL[name] + SECOND)
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400") and b"connection: close" in head.lower() and said.count(b"HTTP/1.1 ") == 1
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("data", [post(LENGTH) + BODY, post("Transfer-Encoding: chunked") + CHUNKED])
def test_plain_messages_keep_the_connection(server: Serving, data: bytes) -> None:
    """Also in halves: nothing is doubtful before it has come whole."""
    assert exchanged(server, data + SECOND).count(b"HTTP/1.1 200 OK") == 2
    assert [framing_fault(data[:end]) for end in range(len(data))] == [None] * len(data)


def test_a_later_message_is_judged_too(server: Serving) -> None:
    said = exchanged(server, FIRST + DOUBTFUL["both"] + SECOND)
    assert said.startswith(b"HTTP/1.1 200 OK") and said.count(b"HTTP/1.1 ") == 2 and b"HTTP/1.1 400" in said


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("localhost.", 200),
        ("127.0.0.1:1", 200),
        ("[::1]", 200),
        ("model.localhost", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("evil.example:8000", 421),
        ("", 421),
        ("localhost@evil.example", 421),
        ("[::1", 421),
        ("0.0.0.0", 421),
        ("10.0.0.1", 421),
    ],
)
def test_a_name_that_another_site_could_have(server: Serving, host: str, status: int) -> None:
    """A page can make its own name mean this machine, but cannot take this machine's names."""
    for path in ("/", "/health", "/v1/models", "/metrics", "/other"):
        said = exchanged(server, f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        wanted = 404 if status == 200 and path == "/other" else status
        assert said.startswith(b"HTTP/1.1 %d" % wanted)
        assert status == 200 or json.loads(said.partition(b"\r\n\r\n")[2])["error"]["message"].startswith("Host is ")


def test_no_name_at_all_is_refused(server: Serving) -> None:
    assert exchanged(server, b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 421")


def test_names_that_were_allowed() -> None:
    assert hosts.is_allowed("Models.Example:443", "10.0.0.1", ("models.example",))
    assert hosts.is_allowed("10.0.0.1:8000", "10.0.0.1", ()) and hosts.is_allowed("10.0.0.1", "::ffff:10.0.0.1", ())
    assert hosts.is_allowed("[2001:DB8::1]:80", None, ("2001:db8:0::1",))
    assert not hosts.is_allowed("other.example", "10.0.0.1", ("models.example",))
    with pytest.raises(ValueError, match="an allowed host is 'a b'; allowed: a name or an address"):
        Access(hosts=("a b",))


def test_no_other_site_is_let_in(server: Serving) -> None:
    """A browser that asks beforehand gets no leave."""
    asked = b"OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n"
    said = exchanged(server, asked + b"Access-Control-Request-Method: POST\r\nConnection: close\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 405") and b"access-control" not in said.lower()
