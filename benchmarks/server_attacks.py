"""Attacks on one server, all at once: prompts of a megabyte, templates without end, numbers and messages that are none.

    python benchmarks/server_attacks.py [--prompts 400] [--templates 100] [--others 400]

The server is a process of its own on this machine, the attackers another. Meanwhile `/health` is asked again and again
and honest requests compare their bits with those from before; in the end memory is read, and the server stopped."""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

NAME = "attacked"
# Honest, unless it is asked to freeze: then it writes a small list that takes for ever to write.
TEMPLATE = (
    "{% if messages[0].content == 'freeze' %}{% set ns = namespace(x=[1]) %}{% for i in range(60) %}"
    "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant: "
)
PLAIN: dict[str, Any] = {"model": NAME, "prompt": "The same bits", "max_tokens": 8, "seed": 1, "logprobs": 0}
CHAT: dict[str, Any] = {
    "model": NAME,
    "messages": [{"role": "user", "content": "Why?"}],
    "max_tokens": 8,
    "seed": 1,
    "logprobs": True,
}
MEGABYTE = (1 << 20) - 200
LONG_TEXTS = ("a", "the quick brown fox ", "1", " ", "\u5929\u5730", "<|")
TIMEOUT_SECONDS = 120.0


def message(path: str, body: bytes, *headers: str, host: str = "localhost") -> bytes:
    lines = [f"POST /v1/{path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def long_prompt(number: int) -> bytes:
    """A body of a megabyte, of one of several kinds."""
    kind = number % (len(LONG_TEXTS) + 3)
    if kind < len(LONG_TEXTS):
        text = LONG_TEXTS[kind]
        text *= MEGABYTE // len(text.encode())
        return message("completions", json.dumps({**PLAIN, "prompt": text}, ensure_ascii=False).encode())
    if kind == len(LONG_TEXTS):
        said = [{"role": "user", "content": "word " * (MEGABYTE // 5)}]
        return message("chat/completions", json.dumps({**CHAT, "messages": said}).encode())
    filler = b"[]," if kind == len(LONG_TEXTS) + 1 else b"1,"
    return message("completions", b'{"prompt": [' + filler * (MEGABYTE // len(filler)) + filler[:-1] + b"]}")


def frozen(number: int) -> bytes:
    said = [{"role": "user", "content": "freeze"}]
    return message("chat/completions", json.dumps({**CHAT, "messages": said}).encode())


def other(number: int) -> bytes:
    """Small ones: numbers that are none, another's name, two lengths."""
    body = json.dumps(PLAIN).encode()
    odd = b'{"temperature": %s, ' % (b"9" * 400, b"1e400", b"NaN")[number % 3] + body[1:]
    return (
        message("completions", odd),
        message("completions", body, host="evil.example"),
        message("completions", body, "Transfer-Encoding: chunked"),
    )[number // 3 % 3]


async def _send(address: str, data: bytes) -> str:
    parts = urlsplit(address)
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                writer.write(data)
                await writer.drain()
                head = await reader.read(4096)
            finally:
                writer.transport.abort()
    except TimeoutError:
        return "no answer"
    except OSError:
        return "hung up"
    return head[9:12].decode() or "hung up"


async def _attack(address: str, prompts: int, templates: int, others: int) -> dict[str, dict[str, int]]:
    kinds = {"prompts": (long_prompt, prompts), "templates": (frozen, templates), "others": (other, others)}
    sent = [(name, make(number)) for name, (make, count) in kinds.items() for number in range(count)]
    statuses = await asyncio.gather(*(_send(address, data) for _, data in sent))
    return {
        kind: dict(Counter(status for (name, _), status in zip(sent, statuses, strict=True) if name == kind))
        for kind in kinds
    }


def attack(address: str, prompts: int, templates: int, others: int) -> dict[str, dict[str, int]]:
    """The statuses that the attackers got, by kind."""
    return asyncio.run(_attack(address, prompts, templates, others))


class Watch(threading.Thread):
    """Asks `/health` again and again, a new connection each time, until it is stopped."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._parts, self._done, self.seconds = urlsplit(address), threading.Event(), list[float]()
        self.failures: list[str] = []

    def run(self) -> None:
        while not self._done.wait(0.1):
            start = time.perf_counter()
            try:
                status = request(self._parts.netloc, "GET", "/health")[0]
            except OSError as error:
                status = type(error).__name__
            if status != 200:
                self.failures.append(str(status))
            self.seconds.append(time.perf_counter() - start)

    def stop(self) -> None:
        self._done.set()
        self.join()


def request(place: str, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[Any, bytes]:
    connection = http.client.HTTPConnection(place, timeout=TIMEOUT_SECONDS)
    try:
        sent = None if body is None else json.dumps(body)
        connection.request(method, path, sent, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def honest(place: str) -> tuple[list[Any], float]:
    """Bits of a completion and of a chat, or the refusal, and the seconds that the slower took."""
    found, slowest = list[Any](), 0.0
    for path, asked in (("completions", PLAIN), ("chat/completions", CHAT)):
        start = time.perf_counter()
        status, body = request(place, "POST", f"/v1/{path}", asked)
        slowest = max(slowest, time.perf_counter() - start)
        logprobs = json.loads(body)["choices"][0]["logprobs"] if status == 200 else None
        if logprobs is None:
            found.append(status)
        else:
            found.append(logprobs.get("samebits") or [each["samebits"] for each in logprobs["content"]])
    return found, slowest


@contextmanager
def served() -> Iterator[tuple[subprocess.Popen[str], str]]:
    # Not above: the attackers, in a process of their own, need nothing of it.
    from samebits.model.huggingface import save_folder
    from samebits.model.loading import load

    with tempfile.TemporaryDirectory() as folder:
        loaded = load("tiny@0")
        save_folder(loaded.model, Path(folder) / NAME, replace(loaded.tokenizer, template=TEMPLATE))
        words = [sys.executable, "-m", "samebits.cli", "serve", "--model", str(Path(folder) / NAME), "--port", "0"]
        with subprocess.Popen([*words, "--json"], stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                yield process, json.loads(process.stdout.readline())["address"]
            finally:
                process.kill()


def memory(process: subprocess.Popen[str]) -> int:
    """Bytes of the server and of all that it started."""
    first = psutil.Process(process.pid)
    total = 0
    for each in (first, *first.children(recursive=True)):
        try:
            total += each.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def measure(prompts: int, templates: int, others: int) -> dict[str, Any]:
    with served() as (process, address):
        place = urlsplit(address).netloc
        expected, alone = honest(place)
        base = Watch(address)
        base.start()
        time.sleep(2)
        base.stop()
        before, peak, answers, times = memory(process), 0, list[Any](), list[float]()
        watch = Watch(address)
        watch.start()
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            start = time.perf_counter()
            attacked = pool.submit(attack, address, prompts, templates, others)
            while not attacked.done():
                found, seconds = honest(place)
                answers.append(found)
                times.append(seconds)
                peak = max(peak, memory(process))
            took = time.perf_counter() - start
        watch.stop()
        after, again = memory(process), honest(place)[0]
        process.terminate()
        ending = time.perf_counter()
        code = process.wait(60)
    kept = [[one for one in each if not isinstance(one, int)] for each in answers]
    right = [[one for one, want in zip(each, expected, strict=True) if one == want] for each in answers]
    return {
        "seconds": round(took, 1),
        "attackers": attacked.result(),
        "health_base_worst": round(max(base.seconds), 3),
        "health_worst": round(max(watch.seconds), 3),
        "health_asked": len(watch.seconds),
        "health_failures": watch.failures,
        "honest_asked": 2 * len(answers),
        "honest_answered": sum(map(len, kept)),
        "honest_right": sum(map(len, right)),
        "honest_alone_seconds": round(alone, 3),
        "honest_worst_seconds": round(max(times), 3),
        "bits_after": again == expected,
        "memory_mib": [each >> 20 for each in (before, peak, after)],
        "exit": code,
        "exit_seconds": round(time.perf_counter() - ending, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=400)
    parser.add_argument("--templates", type=int, default=100)
    parser.add_argument("--others", type=int, default=400)
    given = parser.parse_args()
    print(json.dumps(measure(given.prompts, given.templates, given.others), indent=1))


if __name__ == "__main__":
    main()
