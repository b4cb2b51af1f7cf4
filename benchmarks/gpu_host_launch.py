"""Calls of `linear` whose host's path is in C++, on a GPU: their bits, then their time beside Python's and torch's.

    PYTHONPATH=src python benchmarks/gpu_host_launch.py --output benchmarks/results/h200_host_launch.json

Nothing is timed where a bit differs from samebits.ops.linear, or where a call was not made in C++. Calls are made one
by one from Python, in turns, over sets of inputs that outgrow the cache; bfloat16. Without a GPU nothing is judged,
exit 3."""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from host_launch.attaching import attached
from provenance import provenance
from torch import Tensor

from samebits.bench.cases import Case, Setting
from samebits.bench.cuda_timing import Calls
from samebits.bench.products import forward
from samebits.bench.shapes import MODELS, Weight, weights
from samebits.bench.timing import call_seconds
from samebits.ops import linear

NAMES = ("llama-3-8b", "qwen3-8b", "qwen3-1.7b", "smollm2-135m")
ROWS = (1, 2, 7, 16, 17, 32, 33, 64, 128, 129, 512, 2048, 8192, 16384)
# Other layouts and formats: a row of each kind of launch, for one weight of a small model.
FEWER_ROWS = (1, 17, 64, 129, 2048)
TIMED_ROWS = (1, 16, 64, 256, 1024, 4096)
LEAST_MEAN = 0.95
"""Of torch's call: the mean over all products."""
Given = tuple[Tensor, Tensor, Tensor | None]


def shapes() -> Iterator[tuple[str, Weight]]:
    return ((name, weight) for name in NAMES for weight in weights(MODELS[name]))


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def usual(rows: int, weight: Weight, dtype: torch.dtype = torch.bfloat16) -> Given:
    return random(rows, weight.k, dtype=dtype), random(weight.n, weight.k, dtype=dtype), None


def with_bias(rows: int, weight: Weight) -> Given:
    return *usual(rows, weight)[:2], random(weight.n)


def columns_of_wider(rows: int, weight: Weight) -> Given:
    return random(rows, 2 * weight.k)[:, : weight.k], random(weight.n, weight.k), None


def transposed(rows: int, weight: Weight) -> Given:
    return random(weight.k, rows).T, random(weight.k, weight.n).T, None


def off_by_one(rows: int, weight: Weight) -> Given:
    """No descriptor takes x: its first number is not at a multiple of 16 bytes."""
    return random(rows * weight.k + 1)[1:].view(rows, weight.k), random(weight.n, weight.k), None


def three_axes(rows: int, weight: Weight) -> Given:
    return random(1, rows, weight.k), random(weight.n, weight.k), None


LAYOUTS: dict[str, Callable[[int, Weight], Given]] = {
    "bias": with_bias,
    "columns": columns_of_wider,
    "transposed": transposed,
    "off by one": off_by_one,
    "three axes": three_axes,
    "float16": partial(usual, dtype=torch.float16),
    "float32": partial(usual, dtype=torch.float32),
}


def same_bits(left: Tensor, right: Tensor) -> bool:
    kind = torch.int32 if left.dtype == torch.float32 else torch.int16
    return (
        left.shape == right.shape and left.stride() == right.stride() and torch.equal(left.view(kind), right.view(kind))
    )


def poison(like: Tensor) -> None:
    """Memory that the next result is likely to get: an earlier result there would hide that nothing was written."""
    torch.full_like(like, torch.nan)


def difference(module: Any, words: str, given: Given) -> str | None:
    """What is wrong with a call in C++, which is the second with these sizes; None where nothing is."""
    expected = linear(*given)
    first = module.linear(*given)
    before, _ = module.counted()
    poison(expected)
    found = module.linear(*given)
    if module.counted()[0] != before + 1:
        return f"{words}: not launched in C++: {module.refusal(*given)}"
    if not (same_bits(expected, first) and same_bits(expected, found)):
        return f"{words}: bits differ"
    return None


def elsewhere(module: Any, weight: Weight) -> list[str]:
    """On another stream, and from a CUDA graph."""
    given, found = usual(16, weight), []
    expected = linear(*given)
    module.linear(*given)
    cuda: Any = torch.cuda
    side = cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    poison(expected)
    with torch.cuda.stream(side):
        cuda._sleep(10_000_000)  # a launch on the first stream would not wait for this
        given[0].zero_()
        zeros = module.linear(*given)
    torch.cuda.synchronize()
    if zeros.any():
        found.append("another stream: launched before what came first on it")
    graph = torch.cuda.CUDAGraph()
    before, _ = module.counted()
    with torch.cuda.graph(graph):
        captured = module.linear(*given)
    if module.counted()[0] != before + 1:
        found.append("a graph: not launched in C++")
    given[0].copy_(random(*given[0].shape))
    graph.replay()
    if not same_bits(captured, linear(*given)):
        found.append("a graph: bits differ")
    return found


def differences(module: Any) -> list[str]:
    found: list[str | None] = []
    for (name, weight), rows in itertools.product(shapes(), ROWS):
        words = f"{name} {weight.name} {rows}x{weight.k}x{weight.n}"
        found.append(difference(module, words, usual(rows, weight)))
    small = weights(MODELS["smollm2-135m"])[2]
    for (words, make), rows in itertools.product(LAYOUTS.items(), FEWER_ROWS):
        found.append(difference(module, f"{words} {rows}x{small.k}x{small.n}", make(rows, small)))
    print(f"{len(found)} calls compared")
    return [each for each in found if each is not None] + elsewhere(module, small)


def timed(module: Any, name: str, weight: Weight, rows: int, rounds: int) -> dict[str, Any]:
    case = forward(name, weight, rows).make(Setting(torch.device("cuda"), torch.bfloat16))
    assert isinstance(case, Case)
    inputs = [each.args for each in case.ours if isinstance(each, partial)]
    sides: dict[str, Calls] = {
        "cpp": [partial(module.linear, *each) for each in inputs],
        "python": case.ours,
        "torch": case.theirs["torch"],
    }
    for calls in sides.values():
        for call in [*calls] * 2:
            call()
    _, by_python = module.counted()
    seconds = call_seconds(sides, 0.02, rounds)
    assert module.counted()[1] == by_python, "a timed call was handed to Python"
    times = {f"{side}_us": 1e6 * each for side, each in seconds.items()}
    row = {
        "model": name,
        "weight": weight.name,
        "rows": rows,
        "k": weight.k,
        "n": weight.n,
        **times,
        "ratio": seconds["torch"] / seconds["cpp"],
        "python_ratio": seconds["torch"] / seconds["python"],
    }
    shown = " ".join(f"{each:9.1f}" for each in times.values())
    words = f"{name} {weight.name} {rows}x{weight.k}x{weight.n}"
    print(f"{words:42s} {shown} {row['ratio']:7.2f} ({row['python_ratio']:.2f})", flush=True)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=7, help="alternations of the sides")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_host_launch: no GPU is visible; nothing was judged")
        return 3
    module = attached()
    with torch.no_grad():
        found = differences(module)
        if found:
            print("\n".join(found))
            print(f"{len(found)} calls differ; nothing is timed")
            return 1
        print("us a call: in C++, by Python, torch; ratio of torch's to C++'s (to Python's)", flush=True)
        rows = [timed(module, *case, rows, options.rounds) for case in shapes() for rows in TIMED_ROWS]
    mean = {each: statistics.mean(row[each] for row in rows) for each in ("ratio", "python_ratio")}
    lowest = min(row["ratio"] for row in rows)
    print(f"mean {mean['ratio']:.3f} ({mean['python_ratio']:.3f}), lowest {lowest:.2f}; wanted: mean {LEAST_MEAN}")
    record = {
        **provenance(__file__, torch.cuda.get_device_name()),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "mean_ratio": mean["ratio"],
        "mean_python_ratio": mean["python_ratio"],
        "lowest_ratio": lowest,
        "least_mean": LEAST_MEAN,
        "rows": rows,
    }
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if mean["ratio"] >= LEAST_MEAN else 1


if __name__ == "__main__":
    raise SystemExit(main())
