"""A small form of benchmarks/server_attacks.py: bits, memory and health while others attack, and what is bounded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.infer.serving import NAME, PATIENCE, Serving, serving

from samebits.infer.server.intake import Intake, Queue
from samebits.infer.server.limits import Limits, RefusedError

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PLAIN: dict[str, Any] = {"model": NAME, "prompt": "The same bits", "max_tokens": 4, "seed": 1}


def test_attacks_leave_bits_memory_and_health(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import server_attacks

    found = server_attacks.measure(prompts=18, templates=4, others=27)
    assert set(found["attackers"]["prompts"]) <= {"400", "429"} and found["attackers"]["templates"] == {"400": 4}
    assert found["attackers"]["others"] == {"400": 18, "421": 9}
    assert found["honest_asked"] == found["honest_answered"] == found["honest_right"] > 0 and found["bits_after"]
    before, peak, after = found["memory_mib"]
    assert max(peak, after) - before < 256
    assert found["health_failures"] == [] and found["health_asked"] > 0 and found["exit"] == 0


def test_bytes_beyond_the_first_of_each_are_counted() -> None:
    intake = Intake(Limits(short_bytes=10, waiting_bytes=100, body_bytes=90))
    with intake.body() as first, intake.body() as second, intake.body() as third:
        first.add(b"x" * 80)
        second.add(b"x" * 10)
        assert intake.bytes == 70
        second.add(b"x" * 30)
        assert intake.bytes == 100
        with pytest.raises(RefusedError, match="have 170 bytes beyond the first of each; allowed: at most 100") as busy:
            third.announce(80)
        assert busy.value.status == 429 and busy.value.retry_after == 1 and intake.bytes == 100
        third.add(b"x" * 10)
        with pytest.raises(RefusedError, match="have 101 bytes"):
            third.add(b"x")
        with pytest.raises(RefusedError, match="the number of bytes of the body is 91; allowed: at most 90"):
            first.add(b"x" * 11)
    assert intake.bytes == 0


def test_a_queue_that_is_full_pushes_back_and_another_is_free() -> None:
    """Long bodies and chats cannot hold up a short text; who waits when the server stops gets its reason."""
    held = threading.Event()

    async def play() -> list[object]:
        intake = Intake(Limits(waiting=2, short_bytes=10))

        def wait(body: bytes) -> bytes:
            held.wait(PATIENCE)
            return body

        with intake.body() as long, intake.body() as short:
            long.add(b"x" * 20)
            short.add(b"y")
            stuck = [asyncio.create_task(intake.run(long, wait, chat=False)) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(RefusedError, match="2 requests wait to be read; allowed: at most 2"):
                await intake.run(long, wait, chat=False)
            found = [await intake.run(short, bytes.upper, chat=False), await intake.run(short, bytes.upper, chat=True)]
            intake.stop()
            held.set()
            return [*found, *await asyncio.gather(*stuck, return_exceptions=True)]

    *answered, begun, waited = asyncio.run(play())
    assert answered == [b"Y", b"Y"] and begun == b"x" * 20
    assert isinstance(waited, RefusedError) and (waited.status, waited.message) == (503, "the server is stopping")


def test_a_queue_without_a_bound_is_noticed() -> None:
    """Planted fault: a queue that takes everything keeps everything waiting."""

    async def play(most: int) -> int:
        queue, held, refused = Queue("x", 1, most), threading.Event(), 0
        tasks = [asyncio.create_task(queue.run(lambda: held.wait(PATIENCE))) for _ in range(8)]
        await asyncio.sleep(0)
        held.set()
        for found in await asyncio.gather(*tasks, return_exceptions=True):
            refused += isinstance(found, RefusedError)
        return refused

    assert asyncio.run(play(2)) == 6 and asyncio.run(play(10**9)) == 0


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as running:
        yield running


@pytest.mark.parametrize("prompt", ["a" * 10**6, ["1" * 60_000] * 16, ["the "] * 17, list(range(99)) * 800])
def test_long_prompts_are_refused_unread(server: Serving, monkeypatch: pytest.MonkeyPatch, prompt: Any) -> None:
    """Nothing is cut into tokens for them."""
    monkeypatch.setattr(type(server.service.tokenizer), "_plain", lambda *given: pytest.fail("it was cut"))
    answer = httpx.post(f"{server.url}/v1/completions", json={**PLAIN, "prompt": prompt}, timeout=PATIENCE)
    assert answer.status_code == 400 and "allowed: at most" in answer.json()["error"]["message"]


def test_many_parts_are_refused_by_their_commas(server: Serving) -> None:
    body = b'{"prompt": [' + b"[]," * 300_000 + b"[]]}"
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{server.url}/v1/completions", content=body, headers=headers, timeout=PATIENCE)
    message = answer.json()["error"]["message"]
    assert (
        answer.status_code == 400
        and message == "the number of commas in the body's JSON is 300000; allowed: at most 66560"
    )
