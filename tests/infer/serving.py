"""A tiny model with words of its own, served in this process on a free port, and its offline scores."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from samebits.infer.engine import Engine
from samebits.infer.server.app import Service
from samebits.infer.server.guard import Access
from samebits.infer.server.limits import Limits
from samebits.infer.server.serving import Server, listen
from samebits.model import Batch, Model, ModelConfig
from samebits.model.tokenizer import Tokenizer

TEXTS = ["The same bits, whatever the batch, the split or the number of ranks. ", "Why is the sky blue? "] * 20
TEMPLATE = (
    "{% for message in messages %}<|turn|>{{ message['role'] }}\n{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
NAME = "minute"
CONTEXT = 512
# Longer than any request may take on a loaded machine: what it bounds is a hang.
PATIENCE = 180.0


@cache
def tokenizer() -> Tokenizer:
    trained = Tokenizer.train(TEXTS, 288, special=("<|endoftext|>", "<|turn|>"))
    return replace(trained, template=TEMPLATE)


@cache
def model() -> Model:
    config = ModelConfig(
        vocab_size=288,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        max_position_embeddings=CONTEXT,
        eos_token_id=tokenizer().eos,
    )
    made = Model.new(config, 3)
    # First weights are so small that all tokens are about as likely; larger ones have something to say.
    return replace(
        made, weights={name: each * (8.0 if each.dim() == 2 else 1.0) for name, each in made.weights.items()}
    )


@dataclass
class Serving:
    """A server that runs."""

    url: str
    service: Service
    server: Server

    @property
    def statistics(self) -> dict[str, int]:
        return dict(self.service.loop.statistics)

    def settle(self) -> dict[str, int]:
        """Waits until the engine has let go of everything; its figures then."""
        home = self.server._home
        asyncio.run_coroutine_threadsafe(self.service.loop.quiet.wait(), home).result(PATIENCE)
        return self.statistics


@contextmanager
def serving(
    limits: Limits | None = None,
    api_key: str | None = None,
    pages: int = 256,
    grace: float = 0.0,
    send_bytes: int | None = None,
    endless: bool = False,
    **engine: Any,
) -> Iterator[Serving]:
    service = Service(
        engine=Engine(model(), pages=pages, **engine),
        tokenizer=tokenizer(),
        name=NAME,
        limits=limits or Limits(),
        access=Access(api_key=api_key),
        context=CONTEXT,
    )
    if endless:
        # An answer that ends by itself, early or late, would make a test of running answers one of luck.
        service.stop = frozenset()
    ready: list[str] = []
    started = threading.Event()

    def say(address: str) -> None:
        ready.append(address)
        started.set()

    server = Server(service, grace, say)
    with listen("127.0.0.1", 0) as listening:
        if send_bytes is not None:
            # Connections inherit it: what the kernel holds for a client that does not read.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
        thread = threading.Thread(target=lambda: asyncio.run(server.run_on(listening)))
        thread.start()
        assert started.wait(PATIENCE)
        try:
            yield Serving(ready[0], service, server)
        finally:
            server.end()
            thread.join(PATIENCE)
    assert not thread.is_alive()


def offline(tokens: list[int], scored: Model | None = None) -> list[str]:
    """The bits of each token's logprob by the training forward: of tokens[1], tokens[2], ..."""
    with torch.no_grad():
        hidden = (scored or model()).hidden(Batch.of([tokens]))
        found = (scored or model()).logprobs(hidden[:-1], torch.tensor(tokens[1:]))
    return [struct.pack(">f", value).hex() for value in found.tolist()]


def wait_for(holds: Callable[[], bool]) -> None:
    """Until something holds that others bring about; who waits in vain fails."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
