"""Bodies that no client would send, to a server that runs: always an answer or a refusal in one line, never a fault."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.infer.serving import NAME, PATIENCE, Serving, serving

from samebits.infer.server.limits import Limits, RefusedError
from samebits.infer.server.schema import CHAT, COMPLETION

PATHS = {"completions": COMPLETION, "chat/completions": CHAT}
BASE: dict[str, dict[str, Any]] = {
    "completions": {"model": NAME, "prompt": "x", "max_tokens": 1},
    "chat/completions": {"model": NAME, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
}
# As they stand in a body: what JSON allows and programs do not expect, and what only looks like JSON.
NUMBERS = [
    "9" * 400,
    "-" + "9" * 400,
    "9" * 5000,
    "1e400",
    "-1e400",
    "1e-400",
    "NaN",
    "Infinity",
    "-Infinity",
    "-0",
    "1.0",
    "1e5",
    str(2**31),
    str(2**63),
    str(2**64),
    str(-(2**63) - 1),
    "0." + "3" * 5000,
    "01",
    "+1",
    "0x1",
]
TEXTS = ['"\\ud800"', '"\\u0000"', '"\\udc80\\ud800"', '"' + "y" * 9000 + '"', '"\\ufffe"', '"\x7f"', '"\x01"', '""']
OTHERS = [
    "null",
    "true",
    "[]",
    "{}",
    "[[]]",
    "[null]",
    '[""]',
    "[[1], []]",
    "[-1]",
    f"[{'9' * 400}]",
    "[1.0]",
    "[true]",
    '{"a": 1, "a": 2}',
    "[" * 30 + "]" * 30,
    "[" * 15_000,
    '{"include_usage": 1}',
    '{"type": "text"}',
    "[{}]",
    '[{"role": "user", "content": null}]',
    '[{"role": [], "content": ""}]',
    '[{"role": "user", "content": [{}]}]',
    '[{"role": "user", "content": [{"type": "text", "text": 1}]}]',
    "",
    "1 2",
    "'x'",
]


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(Limits(body_bytes=20_000, max_tokens=2, choices=2)) as running:
        yield running


@pytest.fixture(scope="module")
def web(server: Serving) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as made:
        yield made


def judged(answer: httpx.Response) -> bool:
    """Whether it was answered; if not, the refusal is one that a client can read."""
    if answer.status_code == 200:
        return True
    error = answer.json()["error"]
    assert 400 <= answer.status_code < 500, answer.text
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    assert "\n" not in error["message"] and len(error["message"]) < 1000
    return False


def send(web: httpx.Client, path: str, body: bytes) -> bool:
    return judged(web.post(f"/v1/{path}", content=body, headers={"content-type": "application/json"}))


@pytest.mark.parametrize("path", PATHS)
def test_every_key_with_every_oddity(server: Serving, path: str) -> None:
    """Read as a request's thread does: refused, or found to be in order."""
    read = 0
    for key in PATHS[path]:
        rest = json.dumps({name: value for name, value in BASE[path].items() if name != key})[1:]
        for value in (*NUMBERS, *TEXTS, *OTHERS):
            try:
                server.service.prepare(f'{{"{key}": {value}, {rest}'.encode(), chat=path != "completions")
            except RefusedError as refused:
                assert 400 <= refused.status < 500 and "\n" not in refused.message and len(refused.message) < 1000
            else:
                read += 1
    assert read


@pytest.mark.parametrize("key", ["temperature", "top_p", "seed", "n", "unknown"])
@pytest.mark.parametrize("path", PATHS)
def test_numbers_that_are_none(web: httpx.Client, path: str, key: str) -> None:
    for value in NUMBERS:
        send(web, path, f'{{"{key}": {value}, {json.dumps(BASE[path])[1:]}'.encode())
    assert send(web, path, json.dumps(BASE[path]).encode())


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.integers(2**62, 2**70),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(path=st.sampled_from(sorted(PATHS)), more=st.data())
def test_any_values_of_any_keys(web: httpx.Client, path: str, more: st.DataObject) -> None:
    keys = st.sampled_from(sorted(PATHS[path])) | st.text(max_size=5)
    send(web, path, json.dumps({**BASE[path], **more.draw(st.dictionaries(keys, VALUES, max_size=3))}).encode())


@settings(max_examples=80, deadline=None, derandomize=True)
@given(path=st.sampled_from(sorted(PATHS)), start=st.integers(0, 80), piece=st.binary(max_size=8))
def test_any_bytes_anywhere(web: httpx.Client, path: str, start: int, piece: bytes) -> None:
    whole = json.dumps(BASE[path]).encode()
    send(web, path, whole[:start] + piece + whole[start + len(piece) :])


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/health",
        "/metrics",
        "/v1/models",
        "/v1/completions",
        "/v1/chat/completions",
        "/%00",
        "//",
        "/..%2f",
        "/v1/models/x",
        "/v1/completions/",
        "/%ff?a=%00&b",
    ],
)
def test_any_method_at_any_path(web: httpx.Client, path: str) -> None:
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "ODD"):
        answer = web.request(method, path, content=b"{}" if method == "POST" else None)
        assert answer.status_code < 500
        if answer.status_code >= 400 and method != "HEAD":
            assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_fault_is_noticed(server: Serving) -> None:
    """Planted fault: reading a body raises something that nobody expected."""
    real = server.service.prepare

    def broken(body: bytes, *, chat: bool) -> Any:
        raise OverflowError

    server.service.prepare = broken  # type: ignore[method-assign]
    try:
        answer = httpx.post(f"{server.url}/v1/completions", json=BASE["completions"], timeout=PATIENCE)
        with pytest.raises(AssertionError):
            judged(answer)
    finally:
        server.service.prepare = real  # type: ignore[method-assign]
