"""What tracing costs a training step on the CPU, off and on: `benchmarks/trace_overhead.py [--record]`.

A step of the recipe tiny, whose kernels take a millisecond, and one of a model of 25 million parameters. Off against no
such code at all: the nanoseconds that an operator's call takes more than its implementation, both in turns on an empty
product, times the operators of a step. On: every kernel, block and step into a file of JSON lines, steps in turns with
steps that record nothing, in seconds that the thread of the step computed, the least of each: what else a machine does
only adds, and the other threads of a kernel wait while it records."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from provenance import processor, provenance

from samebits import trace
from samebits.ops import registering
from samebits.records.shipped import recipe
from samebits.trace.modules import modules_as_spans
from samebits.train.assessment import data_of, model_of
from samebits.train.configuration_file import read
from samebits.train.trainer import Trainer

RESULTS = Path(__file__).parent / "results" / "trace_overhead.json"
CALLS = 20_000
# Settings of a case, and how many turns it takes.
CASES: dict[str, tuple[list[str], int]] = {
    "tiny": ([], 41),
    "25M": (
        [
            "model.overrides={vocab_size: 272, hidden_size: 512, num_hidden_layers: 8, num_attention_heads: 8,"
            " num_key_value_heads: 8, head_dim: 64, intermediate_size: 1376}",
            "data.max_length=256",
            "training.micro_batch_size=4",
            "training.gradient_accumulation_steps=1",
        ],
        13,
    ),
}
# Of a step.
ALLOWED = 0.02


def trainer(settings: list[str]) -> Trainer:
    config = read(recipe(Path("tiny")), settings)
    made = Trainer(config, model_of(config), data_of(config))
    for _ in range(2):
        made.step()
    return made


def seconds_of(work: Callable[[], Any]) -> float:
    """That this thread computed."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


def spans_of_a_step(training: Trainer) -> dict[str, int]:
    """How many of each granularity."""
    memory = trace.Memory()
    with trace.recording(memory), modules_as_spans():
        training.step()
    return {kind: sum(each.granularity == kind for each in memory.spans) for kind in ("kernel", "block")}


def a_kernel_off() -> float:
    """Seconds, while nobody records: an operator as it is registered against its implementation alone."""
    observable = registering._observables["gemm"]
    alone, a, b = observable.__wrapped__, torch.ones(0, 4), torch.ones(4, 0)  # type: ignore[attr-defined]

    def calls(function: Callable[..., Any]) -> float:
        def work() -> None:
            for _ in range(CALLS):
                function(a, b, None, "cpu")

        return seconds_of(work) / CALLS

    differences = []
    for turn in range(CASES["tiny"][1]):
        sides = (observable, alone)[:: 1 if turn % 2 == 0 else -1]
        first, second = (calls(each) for each in sides)
        differences.append(first - second if turn % 2 == 0 else second - first)
    return statistics.median(differences)


def on(training: Trainer, turns: int) -> tuple[float, dict[str, Any]]:
    """Steps that are recorded in turns with steps that are not; the seconds of one that is not, and the share."""

    def recorded(path: Path) -> None:
        with ExitStack() as stack:
            stack.enter_context(trace.recording(trace.JsonLines(path)))
            stack.enter_context(modules_as_spans())
            training.step()

    plain, traced = [], []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(turns):
            sides: list[Callable[[], Any]] = [training.step, lambda: recorded(Path(folder) / "trace.jsonl")]
            times = [seconds_of(side) for side in (sides if turn % 2 == 0 else sides[::-1])]
            without, with_it = times if turn % 2 == 0 else times[::-1]
            plain.append(without)
            traced.append(with_it)
    share = min(traced) / min(plain) - 1
    return min(plain), {"share_on": round(share, 4), "allowed": ALLOWED, "met": share < ALLOWED}


def row(case: str, settings: list[str], turns: int, kernel_off: float) -> dict[str, Any]:
    training = trainer(settings)
    spans = spans_of_a_step(training)
    step, recorded = on(training, turns)
    return {
        "case": case,
        "turns": turns,
        **{f"{kind}s": count for kind, count in spans.items()},
        "step_milliseconds": round(1e3 * step, 1),
        "share_off": float(f"{spans['kernel'] * kernel_off / step:.2g}"),
        **recorded,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help=f"write {RESULTS.name} beside the other results")
    arguments = parser.parse_args()
    load_before = os.getloadavg()[0]
    kernel_off = a_kernel_off()
    rows = [row(case, settings, turns, kernel_off) for case, (settings, turns) in CASES.items()]
    found = {"nanoseconds_a_kernel_off": round(1e9 * kernel_off, 1), "rows": rows}
    print(json.dumps(found, indent=1))
    if arguments.record:
        machine = {
            "cores": len(os.sched_getaffinity(0)),
            "load_average": [round(load_before, 2), round(os.getloadavg()[0], 2)],
            "torch": torch.__version__,
        }
        RESULTS.write_text(json.dumps({**provenance(__file__, processor()), **machine, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
