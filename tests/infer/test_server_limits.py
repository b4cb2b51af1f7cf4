"""What the server refuses, at no cost; clients that hang, leave or do not read; an engine that breaks."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from tests.infer.serving import CONTEXT, NAME, PATIENCE, Serving, serving, wait_for

from samebits.infer.server.limits import Limits

LIMITS = Limits(
    body_bytes=20_000,
    depth=8,
    messages=4,
    prompt_tokens=300,
    max_tokens=400,
    choices=4,
    stops=2,
    stop_characters=10,
    top_logprobs=5,
    queue=6,
    header_seconds=1,
    body_seconds=1,
    send_seconds=1,
    idle_seconds=6,
)
KEY = "a key of some length"
PLAIN: dict[str, Any] = {"model": NAME, "prompt": "The same bits", "max_tokens": 4, "seed": 1}
CHAT: dict[str, Any] = {"model": NAME, "messages": [{"role": "user", "content": "Why?"}], "max_tokens": 4}
HEADERS = {"authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(LIMITS, api_key=KEY, send_bytes=4096, endless=True) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=PATIENCE) as made:
        yield made


@pytest.fixture(scope="module")
def web(server: Serving) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as made:
        yield made


def nested(depth: int) -> Any:
    return [] if depth == 1 else [nested(depth - 1)]


COMPLETIONS = [
    ({"frobnicate": 1}, "unknown key 'frobnicate'; known: ", "frobnicate"),
    ({"max_token": 1}, "unknown key 'max_token'; did you mean 'max_tokens'? ", "max_token"),
    ({"model": None}, "model is missing; allowed: a name that /v1/models lists", "model"),
    ({"prompt": None}, "prompt is a JSON null that cannot be read; allowed: text, token numbers, or", "prompt"),
    ({"prompt": []}, "prompt is a JSON list that cannot be read", "prompt"),
    ({"prompt": ["a", 1]}, "prompt is a JSON list that cannot be read", "prompt"),
    ({"prompt": ""}, "prompt has 0 tokens; allowed: at least 1", "prompt"),
    ({"prompt": [1, 288]}, "prompt has token 288; allowed: 0 to 287", "prompt"),
    ({"prompt": [1, -1]}, "prompt has token -1; allowed: 0 to 287", "prompt"),
    ({"prompt": [1] * 301}, "the number of tokens of a prompt is 301; allowed: at most 300", "prompt"),
    ({"prompt": "\ud800 half"}, "prompt has half a character at 0; allowed: whole ones", "prompt"),
    ({"prompt": ["a"] * 5}, "prompts times n is 5; allowed: at most 4", "n"),
    ({"prompt": ["a"] * 2, "n": 3}, "prompts times n is 6; allowed: at most 4", "n"),
    ({"n": 5}, "n is 5; allowed: a whole number, 1 to 4", "n"),
    ({"n": 10**30}, "n is 1000000000000000000000000000000; allowed: a whole number, 1 to 4", "n"),
    ({"n": True}, "n is true; allowed: a whole number, 1 to 4", "n"),
    ({"max_tokens": 401}, "max_tokens is 401; allowed: a whole number, 1 to 400", "max_tokens"),
    ({"max_tokens": 0}, "max_tokens is 0; allowed: a whole number, 1 to 400", "max_tokens"),
    ({"max_tokens": "4"}, 'max_tokens is "4"; allowed: a whole number, 1 to 400', "max_tokens"),
    (
        {"prompt": [1] * 200, "max_tokens": 313},
        f"200 tokens of the prompt and 313 of the answer are 513; allowed: at most {CONTEXT}",
        "max_tokens",
    ),
    ({"logprobs": 6}, "logprobs is 6; allowed: a whole number, 0 to 5", "logprobs"),
    ({"temperature": -1}, "temperature is -1; allowed: 0, or 9.5e-07 to 2", "temperature"),
    ({"temperature": 2.5}, "temperature is 2.5; allowed: 0, or 9.5e-07 to 2", "temperature"),
    ({"top_p": 0}, "top_p is 0; allowed: 1.4e-45 to 1", "top_p"),
    ({"top_p": 1e-60}, "top_p is 1e-60; allowed: 1.4e-45 to 1", "top_p"),
    ({"top_p": "all"}, 'top_p is "all"; allowed: a number', "top_p"),
    ({"seed": -1}, "seed is -1; allowed: a whole number, 0 to 9223372036854775807", "seed"),
    ({"stop": ["a", "b", "c"]}, "the number of stop strings is 3; allowed: at most 2", "stop"),
    ({"stop": "x" * 11}, "the length of a stop string is 11; allowed: at most 10", "stop"),
    ({"stop": ""}, 'stop is ""; allowed: text that is not empty, or a list of it', "stop"),
    ({"stop": [1]}, "stop is [1]; allowed: text that is not empty, or a list of it", "stop"),
    ({"stream": "yes"}, 'stream is "yes"; allowed: true or false', "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options is ", "stream_options"),
    ({"presence_penalty": 0.5}, "presence_penalty is 0.5; allowed: 0", "presence_penalty"),
    ({"presence_penalty": False}, "presence_penalty is false; allowed: 0", "presence_penalty"),
    ({"best_of": True}, "best_of is true; allowed: 1", "best_of"),
    ({"logit_bias": {"5": 100}}, 'logit_bias is {"5": 100}; allowed: {}', "logit_bias"),
    ({"user": "x" * 257}, 'user is "xxx', "user"),
]
CHATS = [
    ({"messages": None}, "messages is a JSON null; allowed: a list of at least one", "messages"),
    ({"messages": CHAT["messages"] * 5}, "the number of messages is 5; allowed: at most 4", "messages"),
    ({"messages": ["hi"]}, "messages[0] has a JSON string; allowed: role and content", "messages[0]"),
    ({"messages": [{"role": "user"}]}, "messages[0] has 'role'; allowed: role and content", "messages[0]"),
    (
        {"messages": [{"role": "king", "content": ""}]},
        'messages[0].role is "king"; allowed: system, user, assistant',
        "messages[0].role",
    ),
    (
        {"messages": [{"role": "user", "content": 5}]},
        "messages[0].content is a JSON number; allowed: text, or a list of text parts",
        "messages[0].content",
    ),
    ({"max_completion_tokens": 5}, "max_completion_tokens is 5, max_tokens is 4; allowed: one of them", "max_tokens"),
    ({"top_logprobs": 2}, "top_logprobs is 2, logprobs is false; allowed: logprobs true", "top_logprobs"),
    ({"logprobs": 2}, "logprobs is 2; allowed: true or false", "logprobs"),
    ({"tools": []}, "unknown key 'tools'; ", "tools"),
]


@pytest.mark.parametrize(
    ("path", "change", "words", "param"),
    [*(("completions", *each) for each in COMPLETIONS), *(("chat/completions", *each) for each in CHATS)],
)
def test_what_is_wrong_is_said_in_one_line_and_costs_nothing(
    server: Serving, web: httpx.Client, path: str, change: dict[str, Any], words: str, param: str
) -> None:
    before = server.settle()
    body = {**(PLAIN if path == "completions" else CHAT), **change}
    headers = {**HEADERS, "content-type": "application/json"}
    answer = web.post(f"/v1/{path}", content=json.dumps(body), headers=headers)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["type"] == "invalid_request_error"
    assert error["message"].startswith(words) and error["param"] == param and "\n" not in error["message"]
    assert server.statistics == before


BODIES = [
    (b"", 400, "the body is no JSON: Expecting value, line 1 column 1"),
    (b"[1]", 400, "the body is a JSON list; allowed: an object"),
    (b'{"a": 1, "a": 2}', 400, "the key 'a' appears twice in one object"),
    (b'{"n": NaN}', 400, "the body has NaN, which is no JSON number"),
    (b'{"n": ' + b"9" * 5000 + b"}", 400, "the body is no JSON that can be read: "),
    (b'{"prompt": "\xff"}', 400, "the body is no UTF-8: invalid start byte at byte 12"),
    (json.dumps({"prompt": nested(8)}).encode(), 400, "the depth of the body's JSON is 9; allowed: at most 8"),
    (b'{"a":' + b"[" * 15_000, 400, "the depth of the body's JSON is 15001; allowed: at most 8"),
    (b" " * 20_001, 413, "the number of bytes of the body is 20001; allowed: at most 20000"),
]


@pytest.mark.parametrize(("body", "status", "words"), BODIES, ids=range(len(BODIES)))
def test_bodies_that_cannot_be_read(server: Serving, web: httpx.Client, body: bytes, status: int, words: str) -> None:
    before = server.settle()
    headers = {**HEADERS, "content-type": "application/json"}
    answer = web.post("/v1/completions", content=body, headers=headers)
    assert answer.status_code == status and answer.json()["error"]["message"].startswith(words)
    assert server.statistics == before


def test_brackets_in_text_are_not_depth(client: openai.OpenAI) -> None:
    """The check of depth is not fooled by text, in either direction."""
    deep = '[{"' * 20
    assert client.completions.create(**{**PLAIN, "prompt": deep, "echo": True}).choices[0].text.startswith(deep)


def test_a_long_body_of_unknown_length_is_cut_off(server: Serving) -> None:
    headers = {**HEADERS, "content-type": "application/json"}
    answer = httpx.post(f"{server.url}/v1/completions", content=iter([b" " * 15_000] * 2), headers=headers)
    assert answer.status_code == 413 and answer.headers["connection"] == "close"


def test_who_still_sends_a_body_that_is_not_wanted_can_read_why(server: Serving) -> None:
    """Found with openai's client: hung up at once, its network dropped the answer, and it saw a reset connection."""
    length = 200_000
    with connected(server) as raw:
        raw.sendall(head(length))
        answer = raw.recv(65536)
        for _ in range(4):
            raw.sendall(b" " * (length // 4))
            time.sleep(0.05)
        while piece := raw.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 413 ") and f"the number of bytes of the body is {length}".encode() in answer


def test_who_never_sends_it_is_hung_up_on(server: Serving) -> None:
    with connected(server) as raw:
        raw.sendall(head(200_000))
        assert b"413" in read_all(raw)


def test_other_refusals(server: Serving) -> None:
    """Each in OpenAI's error object: type of body, path, method, model."""

    def error(answer: httpx.Response) -> tuple[int, str]:
        return answer.status_code, answer.json()["error"]["message"]

    send = {"headers": HEADERS}
    kind = error(httpx.post(f"{server.url}/v1/completions", data={"a": "b"}, **send))
    assert kind == (415, "the body's type is 'application/x-www-form-urlencoded'; allowed: application/json")
    status, words = error(httpx.get(f"{server.url}/v2/completions", **send))
    assert status == 404 and words.startswith("GET /v2/completions: Not Found; allowed: /, /health, ")
    assert error(httpx.get(f"{server.url}/v1/completions", **send)) == (
        405,
        "GET /v1/completions: Method Not Allowed; allowed: POST",
    )
    other = httpx.post(f"{server.url}/v1/completions", json={**PLAIN, "model": "gpt"}, **send)
    assert error(other) == (404, f"no model is called 'gpt'; known: {NAME}")
    assert other.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("key", [None, "", "Bearer", "Bearer wrong", f"Bearer {KEY}x", f"Basic {KEY}", "Bearer \xff"])
def test_a_wrong_key(web: httpx.Client, key: str | None) -> None:
    headers = {} if key is None else {"authorization": key.encode("latin-1")}
    for path in ("v1/models", "metrics", "v1/completions"):
        answer = web.get(f"/{path}", headers=headers)
        assert answer.status_code == 401 and answer.json()["error"]["code"] == "invalid_api_key"
    assert web.get("/health", headers=headers).status_code == 200


def test_the_client_knows_each_refusal(server: Serving, client: openai.OpenAI) -> None:
    """The statuses are those by which OpenAI's client tells its errors apart."""
    with pytest.raises(openai.BadRequestError, match="n is 5; allowed"):
        client.completions.create(**PLAIN, n=5)
    with pytest.raises(openai.NotFoundError, match="no model is called"):
        client.completions.create(**{**PLAIN, "model": "gpt"})
    with pytest.raises(openai.AuthenticationError, match="missing or wrong"):
        client.with_options(api_key="wrong").completions.create(**PLAIN)


def test_a_full_queue_pushes_back(server: Serving, client: openai.OpenAI) -> None:
    """Six answers run or wait; a seventh gets 429 and costs nothing; when they are done new ones are taken."""
    long = {**PLAIN, "prompt": ["a", "b"], "n": 2, "max_tokens": 400, "stream": True}
    with client.completions.create(**long) as first, client.completions.create(**{**long, "n": 1}) as second:
        next(iter(first)), next(iter(second))
        requests = server.statistics["requests"]
        with pytest.raises(openai.RateLimitError, match="6 answers run or wait, 1 more are asked for") as refused:
            client.completions.create(**PLAIN)
        assert refused.value.response.headers["retry-after"] == "1" and refused.value.type == "rate_limit_error"
        assert server.statistics["requests"] == requests
    server.settle()
    assert client.completions.create(**PLAIN).choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_is_cancelled(server: Serving, stream: bool) -> None:
    """Its request ends long before its 400 tokens, and its pages come back."""
    before = server.settle()
    body = json.dumps({**PLAIN, "max_tokens": 400, "stream": stream, "n": 4}).encode()
    with connected(server) as raw:
        raw.sendall(head(len(body)) + body)
        if stream:
            assert b"200 OK" in raw.recv(4096)
        else:
            wait_for(lambda: server.statistics["running"] == 4)
    after = server.settle()
    assert after["cancellations"] - before["cancellations"] == 4 and after["pages_used"] == 0
    assert after["tokens"] - before["tokens"] < 1600 and not server.service.engine.problems()


def test_clients_that_hang_hinder_nobody(server: Serving, client: openai.OpenAI) -> None:
    """Nothing, half of the headers, half of a body, half of the headers of a second request: all hung up on."""
    before = server.settle()
    health = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    sent = [b"", b"POST /v1/comp", head(1000) + b'{"model"', b"GET /hea"]
    hanging = [connected(server) for _ in sent]
    hanging[3].sendall(health)
    assert b"200 OK" in hanging[3].recv(4096)
    for raw, data in zip(hanging, sent, strict=True):
        raw.sendall(data)
    assert client.completions.create(**PLAIN).choices[0].finish_reason == "length"
    received = [read_all(raw) for raw in hanging]
    assert received[0] == received[1] == b""
    assert received[2].startswith(b"HTTP/1.1 408") and b"the body has not come in 1 seconds" in received[2]
    assert b"HTTP/1.1" not in received[3]
    assert server.settle()["requests"] - before["requests"] == 1


def test_a_client_that_does_not_read_is_hung_up_on(server: Serving) -> None:
    """More is sent than the sockets hold; a second later the server lets go, and the engine of what is left."""
    body = json.dumps({**PLAIN, "prompt": [1], "max_tokens": 400, "stream": True, "n": 4, "logprobs": 5}).encode()
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        raw.settimeout(PATIENCE)
        raw.connect(place(server))
        raw.sendall(head(len(body)) + body)
        wait_for(lambda: bool(server.server.server_state.tasks))
        wait_for(lambda: not server.server.server_state.connections)
        assert b"[DONE]" not in read_all(raw)
    assert server.settle()["pages_used"] == 0


def test_more_connections_than_allowed_are_turned_away() -> None:
    """Three do nothing at all; a fourth gets 503 until one of them has left."""
    with serving(Limits(connections=3)) as running:
        idle = [connected(running) for _ in range(3)]
        wait_for(lambda: len(running.server.server_state.connections) == 3)
        with connected(running) as fourth:
            fourth.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert read_all(fourth).startswith(b"HTTP/1.1 503")
        for each in idle:
            each.close()
        wait_for(lambda: not running.server.server_state.connections)
        assert httpx.get(f"{running.url}/health").status_code == 200


def test_an_empty_key_is_no_key() -> None:
    with pytest.raises(ValueError, match="the API key is empty; allowed: at least one character"), serving(api_key=""):
        pass


def test_an_engine_that_breaks_leaves_nobody_waiting() -> None:
    """Planted fault: a step that raises. Those who wait get 500, those who come get 503, health says why."""
    with serving() as running:

        def broken() -> Any:
            raise RuntimeError("a wheel\ncame off")

        running.service.engine.step = broken  # type: ignore[method-assign]
        send = {"json": {**PLAIN}, "timeout": PATIENCE}
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(httpx.post, f"{running.url}/v1/completions", **send) for _ in range(4)]  # type: ignore[arg-type]
            found = [each.result() for each in asked]
        reason = "the engine stopped: RuntimeError: a wheel came off"
        assert {each.status_code for each in found} <= {500, 503} and 500 in {each.status_code for each in found}
        assert all(each.json()["error"]["message"] == reason for each in found)
        health = httpx.get(f"{running.url}/health")
        assert health.status_code == 503 and health.json() == {"status": reason}


def test_numbers_that_are_not_finite_end_one_request() -> None:
    """Planted fault: one step finds no finite logits. That request gets 500, the next is answered."""
    with serving() as running:
        engine, real, calls = running.service.engine, running.service.engine.step, []

        def once() -> Any:
            calls.append(1)
            if len(calls) == 1:
                engine.cancel(0)
                raise ArithmeticError("engine: logits are not finite for request 0")
            return real()

        engine.step = once  # type: ignore[method-assign]
        first = httpx.post(f"{running.url}/v1/completions", json=PLAIN, timeout=PATIENCE)
        assert (first.status_code, first.json()["error"]["message"]) == (
            500,
            "engine: logits are not finite for request 0",
        )
        assert httpx.post(f"{running.url}/v1/completions", json=PLAIN, timeout=PATIENCE).status_code == 200


def place(server: Serving) -> tuple[str, int]:
    parts = urlsplit(server.url)
    assert parts.hostname is not None and parts.port is not None
    return parts.hostname, parts.port


def connected(server: Serving) -> socket.socket:
    return socket.create_connection(place(server), timeout=PATIENCE)


def head(length: int) -> bytes:
    return (
        f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\n"
        f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    ).encode()


def read_all(raw: socket.socket) -> bytes:
    """Until the server hangs up."""
    found = b""
    with raw:
        try:
            while piece := raw.recv(65536):
                found += piece
        except ConnectionResetError:
            pass
    return found
