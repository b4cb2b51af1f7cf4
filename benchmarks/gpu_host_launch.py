"""Calls of operators on a GPU that C++ launches: their bits, then their time beside Python's own and torch's.

    PYTHONPATH=src python benchmarks/gpu_host_launch.py --output benchmarks/results/h200_host_launch.json

Nothing is timed where a bit differs from Python's own function or a call was not launched in C++: exit 1. Calls are
made one by one from Python, in turns, over sets of inputs that outgrow the cache; bfloat16. Without a GPU nothing is
judged, exit 3."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from host_launch_bits import NAMES, difference, differences, random, shapes
from provenance import provenance
from torch.nn import functional

from samebits.bench.cuda_timing import copies
from samebits.bench.shapes import MODELS
from samebits.bench.timing import call_seconds
from samebits.ops.contracts.host_launch import triton_calls

TIMED_ROWS = (1, 16, 64, 256, 1024, 4096)
OTHER_ROWS = (1, 64, 1024)
OTHER_MODELS = (NAMES[0], NAMES[-1])
LEAST_MEAN = 0.95
"""Of torch's call: the mean over all products of `linear`."""
BUDGET = 0.02
"""Seconds of one measurement."""
EPS = 1e-5


@dataclass(frozen=True)
class Timed:
    """An operator with shapes, and what torch has for it."""

    name: str
    model: str
    words: str
    sizes: tuple[tuple[int, ...], ...]
    torchs: Callable[..., Any]
    more: tuple[Any, ...] = ()

    def inputs(self) -> list[tuple[Any, ...]]:
        """Sets of tensors that outgrow the cache."""
        read = 2 * max(torch.Size(each).numel() for each in self.sizes)
        return [(*(random(*each) for each in self.sizes), *self.more) for _ in range(copies(read))]


def products() -> Iterator[Timed]:
    for model, weight in shapes():
        for rows in TIMED_ROWS:
            sizes = (rows, weight.k), (weight.n, weight.k)
            yield Timed("linear", model, f"{weight.name} {rows}x{weight.k}x{weight.n}", sizes, functional.linear)


def others() -> Iterator[Timed]:
    for model in OTHER_MODELS:
        config = MODELS[model]
        hidden, inner, words = config.hidden_size, config.intermediate_size, config.vocab_size

        def normed(x: Any, weight: Any, eps: float, hidden: int = hidden) -> Any:
            return functional.rms_norm(x, (hidden,), weight, eps)

        def added(x: Any, branch: Any, weight: Any, eps: float, hidden: int = hidden) -> Any:
            total = x + branch
            return functional.rms_norm(total, (hidden,), weight, eps), total

        def around(x: Any, weight: Any, bias: Any, eps: float, hidden: int = hidden) -> Any:
            return functional.layer_norm(x, (hidden,), weight, bias, eps)

        for rows in OTHER_ROWS:
            row, wide = (rows, hidden), (rows, inner)
            yield Timed("matmul", model, f"{rows}x{inner}x{hidden}", (wide, (inner, hidden)), torch.matmul)
            yield Timed("rmsnorm", model, f"{rows}x{hidden}", (row, (hidden,)), normed, (EPS,))
            yield Timed("add_rmsnorm", model, f"{rows}x{hidden}", (row, row, (hidden,)), added, (EPS,))
            yield Timed("layernorm", model, f"{rows}x{hidden}", (row, (hidden,), (hidden,)), around, (EPS,))
            yield Timed("gelu", model, f"{rows}x{inner}", (wide,), functional.gelu)
            yield Timed("swiglu", model, f"{rows}x{inner}", (wide, wide), lambda gate, up: functional.silu(gate) * up)
            yield Timed("softmax", model, f"{rows}x{words}", ((rows, words),), partial(torch.softmax, dim=-1))
            yield Timed("log_softmax", model, f"{rows}x{words}", ((rows, words),), partial(torch.log_softmax, dim=-1))


def times(case: Timed, rounds: int) -> dict[str, Any]:
    """Microseconds of a call by side; an error where a timed call was left to Python."""
    inputs = case.inputs()
    ours: Any = getattr(triton_calls, case.name)
    sides = {
        side: [partial(function, *each) for each in inputs]
        for side, function in (("cpp", ours), ("python", ours.__wrapped__), ("torch", case.torchs))
    }
    for calls in sides.values():
        for call in [*calls] * 3:
            call()
    by_python = triton_calls.counted()[case.name][1]
    seconds = call_seconds(sides, BUDGET, rounds)
    if triton_calls.counted()[case.name][1] != by_python:
        raise RuntimeError(f"{case.name} {case.words}: a timed call was left to Python")
    row = {
        "operator": case.name,
        "model": case.model,
        "shape": case.words,
        **{f"{side}_us": 1e6 * each for side, each in seconds.items()},
        "ratio": seconds["torch"] / seconds["cpp"],
        "python_ratio": seconds["torch"] / seconds["python"],
    }
    shown = " ".join(f"{1e6 * each:9.1f}" for each in seconds.values())
    words = f"{case.name} {case.model} {case.words}"
    print(f"{words:52s} {shown} {row['ratio']:7.2f} ({row['python_ratio']:.2f})", flush=True)
    return row


def summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By operator: the mean of torch's time by ours, the same for Python's own, and the lowest."""
    found: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(row["operator"] for row in rows):
        own = [row for row in rows if row["operator"] == name]
        found[name] = {
            "mean_ratio": statistics.mean(row["ratio"] for row in own),
            "mean_python_ratio": statistics.mean(row["python_ratio"] for row in own),
            "lowest_ratio": min(row["ratio"] for row in own),
            "cpp_us_median": statistics.median(row["cpp_us"] for row in own),
        }
    return found


def wrong() -> list[str]:
    """Bits that differ, and calls that Python made."""
    found = differences()
    for case in others():
        (given, *_), words = case.inputs(), f"{case.model} {case.words}"
        found += filter(None, [difference(case.name, words, given)])
    print("other operators: compared", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=5, help="alternations of the sides")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_host_launch: no GPU is visible; nothing was judged")
        return 3
    torch.cuda.init()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        found = wrong()
        print(triton_calls.state(), flush=True)
        if found:
            print("\n".join(found))
            print(f"{len(found)} calls differ or are Python's; nothing is timed")
            return 1
        print("us a call: in C++, by Python, torch; ratio of torch's to C++'s (to Python's)", flush=True)
        rows = [times(case, options.rounds) for each in (products(), others()) for case in each]
    told = summary(rows)
    for name, each in told.items():
        mean = f"{each['mean_ratio']:.3f} ({each['mean_python_ratio']:.3f})"
        print(f"{name}: mean {mean}, lowest {each['lowest_ratio']:.2f}")
    print(f"wanted of linear: mean {LEAST_MEAN}")
    record = {
        **provenance(__file__, torch.cuda.get_device_name()),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "least_mean": LEAST_MEAN,
        "operators": told,
        "rows": rows,
    }
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
