"""A decode step of a Llama of 8 billion weights on one GPU: the step for Hopper beside the plain one.

    PYTHONPATH=src python benchmarks/gpu_decode_step.py --output benchmarks/results/h200_decode_step.json

Bits first: what a step gives, and the keys and values that it keeps. Nothing is timed where one differs. Then, by
batch and in turns, the time of a replayed graph. Without a GPU nothing is judged, exit 3."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from provenance import provenance
from torch import Tensor

from samebits.bench import memory
from samebits.bench.cases import Setting
from samebits.bench.cuda_timing import copy_bandwidth, medians, milliseconds
from samebits.bench.decoding import ANSWER, PAGE, bytes_needed, bytes_read
from samebits.bench.shapes import PUBLISHED
from samebits.bench.stock_model import random_weights
from samebits.infer.chosen_step import HOPPER, lacks, step_type
from samebits.infer.decode_step import DecodeStep, captured_keys, capturing
from samebits.infer.drawing import Choices
from samebits.infer.pages import LayerCache, places
from samebits.model import Model

PROMPT = 128
BATCHES = (1, 16, 64, 256)
ROUNDS = 7
REPLAYS = 10
HELD = PROMPT + ANSWER // 2
COULD_NOT_BE_JUDGED = 3


def steps_of(model: Model, batch: int) -> tuple[dict[str, DecodeStep], list[LayerCache], list[list[int]]]:
    """The steps by name, the caches that they share, and the pages of each request."""
    config, each = model.config, -(-(PROMPT + ANSWER) // PAGE)
    sizes = (batch * each, PAGE, model.key_heads, config.head_dim)
    caches = [LayerCache(*sizes, dtype=model.dtype, device=model.device) for _ in range(config.num_hidden_layers)]
    most = -(-captured_keys(HELD + 1, min(config.max_position_embeddings, batch * each * PAGE)) // PAGE)
    given = (model, caches, batch, most, capturing(model.device))
    # Triton is not there on every machine without a GPU.
    hopper: Any = step_type(HOPPER)
    steps = {"plain": DecodeStep(*given), "hopper": hopper(*given)}
    tables = torch.randperm(batch * each, generator=torch.Generator().manual_seed(batch)).view(batch, each)
    return steps, caches, tables.tolist()


def given_by(step: DecodeStep, caches: Sequence[LayerCache], tables: list[list[int]]) -> list[Tensor]:
    """What a step gives on caches of the same random numbers, and what it writes there."""
    generator = torch.Generator("cuda").manual_seed(0)
    for cache in caches:
        cache.k.normal_(generator=generator), cache.v.normal_(generator=generator)
    batch = len(tables)
    choices = Choices(torch.zeros(4, batch, dtype=torch.int64), torch.tensor([[0.0], [1.0]]).repeat(1, batch))
    decoded = step.run([(37 * row + 5) % 3000 for row in range(batch)], [HELD] * batch, tables, choices)
    written = [place for table in tables for place in places(table, HELD, HELD + 1, PAGE)]
    kept = [each[written] for cache in caches for each in (cache.k_flat, cache.v_flat)]
    return [*(each.clone() for each in decoded), *kept]


def equal(left: Tensor, right: Tensor) -> bool:
    """Equal bits; nothing here is NaN."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[left.element_size()]
    return torch.equal(left.view(kind), right.view(kind))


def replayed(step: Any) -> None:
    for _ in range(REPLAYS):
        step._captured.replay()


def measured(model: Model, batch: int, least: float) -> dict[str, Any]:
    """Of a batch: the steps that give other bits than the plain one, or milliseconds of a pass by step."""
    steps, caches, tables = steps_of(model, batch)
    given = {name: given_by(step, caches, tables) for name, step in steps.items()}
    differing = [name for name, each in given.items() if not all(map(equal, each, given["plain"]))]
    print(f"batch {batch}: {', '.join(differing) or 'every bit is that of the plain step'}", flush=True)
    if differing:
        return {"batch": batch, "differing": differing}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            times[name].append(milliseconds(partial(replayed, step)) / REPLAYS)
    found = dict(zip(times, medians(list(times.values())), strict=True))
    for name, each in found.items():
        print(f"  {each:7.3f} ms, {least / each:.2f} of the bandwidth limit  {name}", flush=True)
    return {"batch": batch, "differing": [], "ms": found, "of_the_bandwidth_limit": least / found["hopper"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--batch", type=int, action="append", help=f"instead of {BATCHES}")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_decode_step: there is no GPU; could not be judged", file=sys.stderr)
        return COULD_NOT_BE_JUDGED
    begun, batches = time.monotonic(), options.batch or BATCHES
    config, setting = PUBLISHED["llama-3-8b"], Setting(torch.device("cuda"), torch.bfloat16)
    memory.require(config, PROMPT + ANSWER, bytes_needed(config, setting.dtype, max(batches), PROMPT), setting.device)
    model = Model(config=config, weights=random_weights(config, setting)).for_inference()
    lack = lacks(model, PAGE)
    if lack is not None:
        print(f"gpu_decode_step: the step for Hopper needs {lack}; could not be judged", file=sys.stderr)
        return COULD_NOT_BE_JUDGED
    least = bytes_read(config, setting.dtype) / copy_bandwidth() * 1e3
    record = provenance(__file__, torch.cuda.get_device_name())
    record |= {"torch": torch.__version__, "triton": import_module("triton").__version__}
    record |= {"least_ms": least, "batches": [measured(model, batch, least) for batch in batches]}
    record["seconds"] = round(time.monotonic() - begun)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if any(each["differing"] for each in record["batches"]) else 0


if __name__ == "__main__":
    sys.exit(main())
