"""`samebits generate`: one prompt goes on, token by token, with the logprob of each where they are wanted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samebits.cli.console import Json, print_json, progress
from samebits.cli.devices import check_device
from samebits.cli.errors import between_ranks

if TYPE_CHECKING:
    from samebits.infer import Engine, Event, Request
    from samebits.model.tokenizer import Tokenizer

SCHEMA = "samebits.generate/1"
PAGE_SIZE = 16


def generate(
    model: Annotated[str, typer.Option(help="A folder with config.json, a .gguf file, smollm2, or tiny@0.")],
    prompt: Annotated[str, typer.Option(help="The prompt to continue.")],
    chat: Annotated[
        bool, typer.Option("--chat", help="The prompt is a message, written by the chat template.")
    ] = False,
    max_tokens: Annotated[int, typer.Option(help="The most tokens to draw.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Only the k likeliest tokens; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Only the likeliest tokens that make up this much.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    logprobs: Annotated[bool, typer.Option("--logprobs", help="A line a token: id, logprob, its bits, text.")] = False,
    as_json: Json = False,
) -> None:
    """Continue a text: the same tokens and logprobs as in any batch of an engine or server with these weights.

    Under `samebits launch` or torchrun the weights are shared by all ranks, with the bits of one.

    Example: [bold]samebits generate --model smollm2 --chat --prompt "What is a prime number?" --temperature 0[/bold]"""
    from samebits.infer import Engine, Request, Sampling
    from samebits.infer.request import bits
    from samebits.model.loading import load
    from samebits.model.split import Split
    from samebits.parallel.agreeing import agree, digest_of
    from samebits.parallel.launching import ranks

    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    asked = {
        "--prompt": prompt,
        "--chat": chat,
        "--max-tokens": max_tokens,
        "--temperature": temperature,
        "--top-k": top_k,
        "--top-p": top_p,
        "--seed": seed,
        "--dtype": dtype,
    }
    check_device("--device", device)
    with ranks(device=device, tell=between_ranks(as_json)) as world:
        agree(world, "settings", asked)
        with progress(f"loading {model}"):
            loaded = load(model, dtype, device)
        words, whole = loaded.tokenizer, loaded.model
        if world.size > 1:
            agree(
                world,
                "model",
                {
                    "model config": json.dumps(asdict(whole.config), sort_keys=True),
                    "model weights": digest_of(whole.weights.items()),
                    "tokenizer": f"sha256:{words.digest()}",
                },
            )
        ids = words.conversation([{"role": "user", "content": prompt}]) if chat else words.encode(prompt)
        request = Request(prompt=tuple(ids), max_tokens=max_tokens, sampling=sampling, stop=frozenset(words.eos))
        pages = min(len(ids) + max_tokens, whole.config.max_position_embeddings) // PAGE_SIZE + 1
        if world.size > 1:
            whole = whole.parted(Split(config=whole.config, group=world.group, gathers=True))
        engine = Engine(whole.for_inference(), pages=pages, page_size=PAGE_SIZE)
        engine.submit(request)
        if world.rank:
            # Every rank computes its part of every token; one of them says it.
            for _ in _events(engine):
                pass
        elif as_json:
            print_json(_document(model, request, list(_events(engine)), words))
        elif logprobs:
            for event in _events(engine):
                text = json.dumps(words.text([event.token]), ensure_ascii=False)
                print(f"{event.token:>7} {event.logprob:>12.7f} {bits(event.logprob)} {text}", flush=True)
        else:
            _write(_events(engine), words, request.stop)


def _events(engine: Engine) -> Iterator[Event]:
    while not engine.idle:
        yield from engine.step()


def _write(events: Iterator[Event], words: Tokenizer, stop: frozenset[int]) -> None:
    """Whole characters as they become certain; the token that ends the answer is no part of the text."""
    from samebits.model.tokenizer import Stream

    stream = Stream(words)
    for event in events:
        if event.token not in stop:
            print(stream.feed(event.token), end="", flush=True)
    print(stream.finish())


def _document(model: str, request: Request, events: Sequence[Event], words: Tokenizer) -> dict[str, Any]:
    from samebits.infer.request import bits

    told = [
        {"token": each.token, "text": words.text([each.token]), "logprob": each.logprob, "bits": bits(each.logprob)}
        for each in events
    ]
    answer = [each.token for each in events if each.token not in request.stop]
    return {
        "schema": SCHEMA,
        "model": model,
        "sampling": asdict(request.sampling),
        "prompt_tokens": len(request.prompt),
        "text": words.text(answer),
        "finished": events[-1].finished,
        "tokens": told,
    }
