"""Many clients at one server for a while: errors, time to the first token, tokens a second, and a probe's bits.

    python benchmarks/server_load.py [--model tiny@0] [--clients 64] [--seconds 120] [--record]

The server is a process of its own, the clients are OpenAI's. Each asks, reads its stream to the end, and asks again.
Client 0 always asks the same, and compares every logprob's bits with those it got before the others came."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
from provenance import processor, provenance

from samebits.checker.environment import environment

RESULTS = Path(__file__).parent / "results" / "server_load.json"
TOPICS = ("tides", "glaciers", "violins", "beetles", "harbours", "chess", "bread", "comets", "maps", "bridges", "moss")
TIMEOUT_SECONDS = 120.0
PROBE = 0


@dataclass
class Tally:
    """What the clients saw."""

    first_token: list[float] = field(default_factory=list)
    tokens: int = 0
    probes: int = 0
    mismatched: int = 0
    """Logprobs of the probe whose bits are not those from before the load."""
    errors: list[str] = field(default_factory=list)


@contextmanager
def served(model: str) -> Iterator[tuple[str, str]]:
    """The address and the model's name of a server that lives as long as the block."""
    words = [sys.executable, "-m", "samebits.cli", "serve", "--model", model, "--port", "0", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            yield said["address"], said["model"]
        finally:
            process.terminate()
            code = process.wait(60)
    if code != 0:
        raise RuntimeError(f"the server exited with {code}")


def asked(client: int, turn: int) -> dict[str, Any]:
    """Prompts and answers of many lengths; the probe is the same in every turn."""
    if client == PROBE:
        return {"prompt": "The same bits, whatever the batch.", "max_tokens": 24, "seed": 1, "logprobs": 0}
    topic = TOPICS[(client + turn) % len(TOPICS)]
    prompt = f"Part {turn}. {'Say more. ' * (client % 7)}Tell me about {topic}."
    return {"prompt": prompt, "max_tokens": 8 + 8 * ((client + turn) % 6), "seed": client * 1000 + turn, "logprobs": 0}


async def answer(client: openai.AsyncOpenAI, model: str, request: dict[str, Any]) -> tuple[float, list[str]]:
    """Seconds to the first token, and the bits of every logprob."""
    start, first, bits = time.perf_counter(), math.nan, list[str]()
    async for piece in await client.completions.create(model=model, stream=True, **request):
        if not bits:
            first = time.perf_counter() - start
        bits += piece.choices[0].logprobs.samebits["bits"]
    return first, bits


async def load(address: str, model: str, clients: int, seconds: float) -> Tally:
    tally = Tally()
    options: dict[str, Any] = {"base_url": f"{address}/v1", "api_key": "none", "max_retries": 0}
    async with openai.AsyncOpenAI(**options, timeout=TIMEOUT_SECONDS) as client_of_one:
        _, expected = await answer(client_of_one, model, asked(PROBE, 0))
        end = time.perf_counter() + seconds

        async def one(client: int) -> None:
            turn = 0
            while time.perf_counter() < end:
                try:
                    first, bits = await answer(client_of_one, model, asked(client, turn))
                except openai.OpenAIError as error:
                    tally.errors.append(f"client {client}, turn {turn}: {type(error).__name__}: {error}")
                    return
                tally.first_token.append(first)
                tally.tokens += len(bits)
                if client == PROBE:
                    tally.probes += 1
                    pairs = zip(bits, expected, strict=False)
                    tally.mismatched += sum(a != b for a, b in pairs) + abs(len(bits) - len(expected))
                turn += 1

        await asyncio.gather(*(one(client) for client in range(clients)))
    return tally


def quantile(values: list[float], part: float) -> float:
    """The smallest value that at least this part of all do not exceed."""
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)]


def measure(model: str, clients: int, seconds: float) -> dict[str, Any]:
    with served(model) as (address, name):
        start = time.perf_counter()
        tally = asyncio.run(load(address, name, clients, seconds))
        took = time.perf_counter() - start
    times = tally.first_token
    return {
        "model": model,
        "clients": clients,
        "seconds": round(took, 1),
        "requests": len(times),
        "tokens": tally.tokens,
        "tokens_per_second": round(tally.tokens / took, 1),
        "errors": tally.errors,
        "probes": tally.probes,
        "mismatched_logprobs": tally.mismatched,
        "first_token_p50": quantile(times, 0.5) if times else None,
        "first_token_p99": quantile(times, 0.99) if times else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny@0")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--record", action="store_true", help=f"write {RESULTS.name} beside the other results")
    given = parser.parse_args()
    found = measure(given.model, given.clients, given.seconds)
    print(json.dumps(found, indent=1))
    if given.record:
        RESULTS.write_text(
            json.dumps({**provenance(__file__, processor()), "environment": environment(), **found}, indent=1) + "\n"
        )
    sys.exit(1 if found["errors"] or found["mismatched_logprobs"] else 0)


if __name__ == "__main__":
    main()
