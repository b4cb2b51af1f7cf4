"""`samebits serve`: a model behind OpenAI's interface, with limits, metrics and a page to try it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from samebits.cli.console import Json, output, progress
from samebits.records.packages import needed

SCHEMA = "samebits.serve/1"


def serve(
    model: Annotated[str, typer.Option(help="A folder in Hugging Face's layout, a GGUF file, or smollm2.")],
    name: Annotated[str | None, typer.Option(help="What clients call it.  [default: the last part of --model]")] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.")] = 8000,
    api_key: Annotated[
        str | None, typer.Option(envvar="SAMEBITS_API_KEY", show_envvar=True, help="Require this API key.")
    ] = None,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="A further Host header to accept; may be given several times.")
    ] = None,
    pages: Annotated[int, typer.Option(help="Pages of the key-value cache.")] = 512,
    page_size: Annotated[int, typer.Option(help="Tokens of a page, a multiple of 16.")] = 16,
    batch_tokens: Annotated[int, typer.Option(help="Most tokens in one forward pass.")] = 256,
    batch_requests: Annotated[int, typer.Option(help="Most answers in one forward pass.")] = 64,
    max_body_bytes: Annotated[int, typer.Option(help="Most bytes of a request.")] = 1 << 20,
    max_prompt_tokens: Annotated[int, typer.Option(help="Most tokens of a prompt.")] = 4096,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 1024,
    max_choices: Annotated[int, typer.Option(help="Most answers to a request: prompts times n.")] = 16,
    max_queue: Annotated[int, typer.Option(help="Most answers that run or wait; beyond it clients get 429.")] = 256,
    grace: Annotated[float, typer.Option(min=0, help="Seconds that running answers get after SIGTERM.")] = 30.0,
    as_json: Json = False,
) -> None:
    """Serve a model: completions and chat completions with logprobs, /v1/models, /health, /metrics, a page at /.

    An answer does not depend on what else runs. Prints one line when ready; ends on SIGTERM or Ctrl+C.

    Example: [bold]samebits serve --model smollm2 --port 8000[/bold]"""
    with needed("serve"):
        from samebits.infer.server.app import Service
        from samebits.infer.server.guard import Access
        from samebits.infer.server.serving import listen
        from samebits.infer.server.serving import serve as run
    from samebits.infer.engine import Engine
    from samebits.infer.server.limits import Limits
    from samebits.model.loading import load

    limits = Limits(
        body_bytes=max_body_bytes,
        prompt_tokens=max_prompt_tokens,
        max_tokens=max_tokens,
        choices=max_choices,
        queue=max_queue,
    )
    access = Access(api_key=api_key, hosts=(host, *(allowed_host or ())))
    with listen(host, port) as listening:
        with progress(f"loading {model}"):
            loaded = load(model)
            engine = Engine(
                loaded.model.for_inference(),
                pages=pages,
                page_size=page_size,
                batch_tokens=batch_tokens,
                batch_requests=batch_requests,
            )
        service = Service(
            engine=engine,
            tokenizer=loaded.tokenizer,
            name=name or Path(model).name,
            limits=limits,
            access=access,
            context=min(loaded.model.config.max_position_embeddings, pages * page_size),
        )

        def ready(address: str) -> None:
            if as_json:
                said = {"schema": SCHEMA, "address": address, "model": service.name, "decode_step": engine.decode_step}
                print(json.dumps(said), flush=True)
            else:
                output().print(f"samebits serves {service.name} at {address} (decode step: {engine.decode_step})")

        run(service, listening, grace=grace, ready=ready)
