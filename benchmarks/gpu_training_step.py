"""One update of the trainer on a GPU: passes captured as CUDA graphs, made one by one, and stock code by torch.compile.

    PYTHONPATH=src python benchmarks/gpu_training_step.py --output benchmarks/results/h200_training_step.json
    PYTHONPATH=src python benchmarks/gpu_training_step.py --only 400m --output /tmp/step.json

Bits first: three updates with graphs and without leave the same losses, norms, weights and moments, or nothing is
timed, exit 1. Then both in turns, as users get them; then transformers' model alone, since not all of them fit beside
each other. Same sequences, all of an update in one pass, bfloat16. Without a GPU nothing is judged, exit 3."""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from provenance import provenance

from samebits.bench.cases import Setting
from samebits.bench.shapes import MODELS
from samebits.bench.stock_model import random_weights, transformers_model
from samebits.bench.timing import seconds_of
from samebits.bench.training import StockTraining, config_of, random_data, trainer_of
from samebits.model.config import ModelConfig
from samebits.train.configuration import TrainConfig
from samebits.train.data import Data
from samebits.train.trainer import Trainer

COULD_NOT_BE_JUDGED = 3
SHAPES = {"400m": ("350m", 16, 1024), "1.7b": ("qwen3-1.7b", 8, 1024)}
"""A model by name, sequences of an update, tokens of each."""
COMPARED = 3
"""Updates whose bits are compared: made, captured, launched again. So are those before torch.compile is timed."""
TARGET = 1.15
"""Of torch.compile's speed."""
DEVICE = torch.device("cuda")
FULL = Setting(DEVICE, torch.float32)


class Timed:
    """A trainer, and the seconds of its updates, of which those until the loss is known are the passes'."""

    def __init__(self, config: TrainConfig, shape: ModelConfig, data: Data, captured: bool) -> None:
        self.trainer: Trainer = trainer_of(config, shape, data, FULL)
        if not captured:
            self.trainer.captured = None
        self.passes: list[float] = []
        self.updates: list[float] = []
        made = self.trainer.parts
        self.trainer.parts = replace(made, backward=partial(self._backward, made.backward))

    def _backward(self, backward: Callable[..., Any], *given: Any) -> Any:
        began = time.perf_counter()
        found = backward(*given)
        self.passes.append(time.perf_counter() - began)
        return found

    def step(self) -> None:
        self.updates.append(seconds_of(self.trainer.step, DEVICE))

    def summed_up(self) -> dict[str, Any]:
        return {
            "milliseconds": _milliseconds(self.updates),
            "of_which_passes": _milliseconds(self.passes),
            "all_milliseconds": [round(1e3 * each, 3) for each in self.updates],
        }


def _milliseconds(seconds: list[float]) -> float:
    return round(1e3 * statistics.median(seconds), 3)


def difference(one: Trainer, other: Trainer) -> str | None:
    """What differs after an update of both."""
    mine, yours = (replace(trainer.step(), seconds=0.0) for trainer in (one, other))
    if mine != yours:
        return f"{mine} and {yours}"
    tensors = ({**each.weights, **each.moments()} for each in (one, other))
    for (name, left), right in zip(next(tensors).items(), next(tensors).values(), strict=True):
        # On the device: billions of numbers take long to copy and to hash.
        if not torch.equal(left.view(torch.int32), right.view(torch.int32)):
            return f"{name} after update {one.done}"
    return None


def ours(config: TrainConfig, shape: ModelConfig, data: Data, updates: int) -> dict[str, Any] | str:
    """Both ways, in turns; or what differs."""
    sides = {name: Timed(config, shape, data, name == "captured") for name in ("captured", "one by one")}
    for _ in range(COMPARED):
        found = difference(*(each.trainer for each in sides.values()))
        if found:
            return found
    graphs = sides["captured"].trainer.captured
    if graphs is None or not graphs._graphs:
        return "no pass was captured"
    record: dict[str, Any] = {"updates_compared": COMPARED, "bytes_held_by_graphs": graphs._held}
    for side in sides.values():
        side.passes.clear()
    for turn in range(updates):
        for side in list(sides.values())[:: 1 if turn % 2 == 0 else -1]:
            side.step()
    return record | {name: side.summed_up() for name, side in sides.items()}


def compiled(config: TrainConfig, shape: ModelConfig, data: Data, updates: int) -> dict[str, Any]:
    stock = StockTraining(config, transformers_model(shape, random_weights(shape, FULL)), data, compiled=True)
    began = time.perf_counter()
    for _ in range(COMPARED):
        seconds_of(stock.step, DEVICE)
    ready = time.perf_counter() - began
    seconds = [seconds_of(stock.step, DEVICE) for _ in range(updates)]
    return {
        "milliseconds": _milliseconds(seconds),
        "all_milliseconds": [round(1e3 * each, 3) for each in seconds],
        "seconds_until_it_was_compiled": round(ready, 1),
    }


def freed() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def measured(name: str, updates: int, with_compile: bool) -> dict[str, Any] | str:
    """A row of the record; or what differs."""
    model, sequences, tokens = SHAPES[name]
    shape = MODELS[model]
    config = config_of(Setting(DEVICE, torch.bfloat16), "bfloat16", sequences, tokens)
    data = random_data(shape, sequences, tokens)
    found = ours(config, shape, data, updates)
    if isinstance(found, str):
        return found
    row = {"case": model, "shape": f"{sequences} x {tokens} tokens", **found}
    row["peak_bytes_of_both"] = torch.cuda.max_memory_allocated()
    row["one_by_one_over_captured"] = _ratio(row, "one by one")
    print(f"{model}: {row['captured']['milliseconds']} ms, one by one {row['one by one']['milliseconds']}", flush=True)
    freed()
    if with_compile:
        row["torch.compile"] = compiled(config, shape, data, updates)
        row["peak_bytes_of_torch.compile"] = torch.cuda.max_memory_allocated()
        row["ratio"], row["target"] = _ratio(row, "torch.compile"), TARGET
        row["met"] = row["ratio"] >= TARGET
        freed()
    return row


def _ratio(row: dict[str, Any], side: str) -> float:
    """How many times as long the other side takes."""
    return round(row[side]["milliseconds"] / row["captured"]["milliseconds"], 3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--only", choices=tuple(SHAPES), help="of the shapes")
    parser.add_argument("--updates", type=int, default=10, help="timed of each side; default 10")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile, which takes a minute a shape")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_training_step: there is no GPU; could not be judged", file=sys.stderr)
        return COULD_NOT_BE_JUDGED
    began = time.monotonic()
    record = provenance(__file__, torch.cuda.get_device_name()) | {
        "torch": torch.__version__,
        "triton": import_module("triton").__version__,
        "rows": [],
    }
    for name in (options.only,) if options.only else SHAPES:
        found = measured(name, options.updates, not options.no_compile)
        if isinstance(found, str):
            print(f"gpu_training_step: {name}: with graphs and without differ: {found}", file=sys.stderr)
            return 1
        record["rows"].append(found)
        record["seconds"] = round(time.monotonic() - began)
        print(f"{name}: {json.dumps(found)}", flush=True)
        # After every shape: what ran is kept where time runs out.
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
