"""Decoding a Llama of 8 billion weights on one GPU, beside transformers with a static cache, compiled with CUDA graphs.

    PYTHONPATH=src python -m samebits.native.build
    PYTHONPATH=src python benchmarks/gpu_decode.py --output benchmarks/results/h200_decode.json

Both sides have the same random weights, prompts and greedy draws. First the bits: an answer of a batch is that of its
request alone. Then, by batch, the median time of a step that decodes one token of every request, as a caller sees it;
and the least time in which the weights can be read at the speed of a copy. Without a GPU nothing is judged, exit 3."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from provenance import provenance

from samebits.bench.cuda_timing import milliseconds
from samebits.infer import Engine, Request, Sampling
from samebits.model import Model, ModelConfig
from samebits.model.weights import shapes

LLAMA_8B = ModelConfig(
    vocab_size=128256,
    hidden_size=4096,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    intermediate_size=14336,
    max_position_embeddings=4096,
    tie_word_embeddings=False,
)
PROMPT, TOKENS = 128, 32
BATCHES = (1, 2, 16, 64, 128, 256)
COULD_NOT_BE_JUDGED = 3


def random_weights(config: ModelConfig) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        name: torch.ones(shape, device="cuda", dtype=torch.bfloat16)
        if len(shape) == 1
        else torch.empty(shape, device="cuda", dtype=torch.bfloat16).normal_(std=0.02)
        for name, shape in shapes(config).items()
    }


def prompt(request: int) -> tuple[int, ...]:
    return tuple((31 * request + 7 * place) % 5000 for place in range(PROMPT))


def engine_of(model: Model, batch: int) -> Engine:
    """All prompts in one pass, so that every later step decodes the whole batch."""
    pages = batch * -(-(PROMPT + TOKENS) // 16)
    return Engine(model, pages=pages, batch_tokens=batch * PROMPT, batch_requests=batch)


def request_of(number: int) -> Request:
    return Request(prompt=prompt(number), max_tokens=TOKENS, sampling=Sampling(temperature=0.0))


def same_alone(model: Model, batch: int) -> bool:
    """Whether the first and the last request of a batch get the answers that they get alone."""
    together = engine_of(model, batch).generate([request_of(number) for number in range(batch)])
    alone = [engine_of(model, 1).generate([request_of(number)])[0] for number in (0, batch - 1)]
    return [(each.tokens, each.logprobs) for each in alone] == [
        (each.tokens, each.logprobs) for each in (together[0], together[-1])
    ]


def step_times(step: Callable[[], Any], steps: int) -> float:
    """Milliseconds of a step: the median of those after the first eight."""
    times = []
    for _ in range(steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[8:])


def ours(model: Model, batch: int) -> float:
    engine = engine_of(model, batch)
    for number in range(batch):
        engine.submit(request_of(number))
    engine.step()
    return step_times(engine.step, TOKENS - 1)


def theirs(weights: dict[str, torch.Tensor], config: ModelConfig) -> Callable[[int], float]:
    """transformers' Llama with a static cache; a step is compiled once a batch, replayed as a CUDA graph."""
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    named = LlamaConfig(
        **{
            name: getattr(config, name)
            for name in (
                "vocab_size",
                "hidden_size",
                "num_hidden_layers",
                "num_attention_heads",
                "num_key_value_heads",
                "head_dim",
                "intermediate_size",
                "max_position_embeddings",
                "tie_word_embeddings",
            )
        },
        dtype=torch.bfloat16,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(named)
    model = model.to_empty(device="cuda").to(torch.bfloat16).eval()
    model.load_state_dict(weights)
    # Its table of frequencies is no weight and was not made on the meta device.
    model.model.rotary_emb = type(model.model.rotary_emb)(named).to("cuda")
    compiled = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)

    def timed(batch: int) -> float:
        cache = StaticCache(config=named, max_cache_len=PROMPT + TOKENS)
        ids = torch.tensor([prompt(number) for number in range(batch)], device="cuda")
        state = {"place": PROMPT}
        with torch.no_grad():
            first = model(ids, past_key_values=cache, position_ids=torch.arange(PROMPT, device="cuda")[None])
            state["token"] = first.logits[:, -1:].argmax(-1)

            def step() -> None:
                place = torch.tensor([[state["place"]]], device="cuda")
                found = compiled(state["token"].clone(), past_key_values=cache, position_ids=place)
                state["token"] = found.logits[:, -1:].argmax(-1)
                state["place"] += 1
                state["token"].tolist()

            return step_times(step, TOKENS - 1)

    return timed


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a large copy."""
    source = torch.empty(2**31, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * source.numel() / statistics.median(1e-3 * milliseconds(lambda: target.copy_(source)) for _ in range(9))


def measured(config: ModelConfig, batches: tuple[int, ...]) -> dict[str, Any]:
    import transformers
    import triton

    found = provenance(__file__, torch.cuda.get_device_name())
    found |= {"torch": torch.__version__, "triton": triton.__version__, "transformers": transformers.__version__}
    weights, bandwidth = random_weights(config), copy_bandwidth()
    read = sum(weight.numel() * 2 for name, weight in weights.items() if "embed_tokens" not in name)
    model = Model(config=config, weights=weights).for_inference()
    found["bits"] = {str(batch): same_alone(model, batch) for batch in (2, 16)}
    mine = {batch: ours(model, batch) for batch in batches}
    memory = torch.cuda.max_memory_allocated()
    weights = dict(model.weights)
    del model
    timed = theirs(weights, config)
    lines = []
    for batch in batches:
        other = timed(batch)
        lines.append(
            {
                "batch": batch,
                "ours_tokens_per_second": round(1e3 * batch / mine[batch], 1),
                "transformers_tokens_per_second": round(1e3 * batch / other, 1),
                "ratio": round(other / mine[batch], 3),
                "of_the_bandwidth_limit": round(1e3 * read / bandwidth / mine[batch], 3),
            }
        )
        print(json.dumps(lines[-1]), flush=True)
    found |= {"copy_bandwidth": bandwidth, "bytes_read": read, "peak_memory": memory, "lines": lines}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--batch", type=int, action="append", help=f"instead of {BATCHES}")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_decode: there is no GPU; could not be judged", file=sys.stderr)
        return COULD_NOT_BE_JUDGED
    record = measured(LLAMA_8B, tuple(options.batch or BATCHES))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(record["bits"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
