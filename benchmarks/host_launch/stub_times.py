"""Host time of one call of `linear`, Python's path and that in C++, on any machine: a stub stands in for the driver.

    PYTHONPATH=src:benchmarks python -m host_launch.stub_times

In turns, medians; microseconds. What a real driver takes for a launch is not in them, nor a GPU's allocator: CPU memory
stands for it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from host_launch.stub import standing_in
from samebits import ops

CASES = ((16, 576, 1536, False), (16, 576, 1536, True), (128, 576, 1536, False), (1, 2048, 2048, True))
CALLS, ROUNDS = 2000, 15


def microseconds(sides: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Of a call, by side: the median over rounds."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, call in sides.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append((time.perf_counter() - start) / CALLS * 1e6)
    return {name: statistics.median(each) for name, each in times.items()}


def main() -> int:
    print(f"{'rows x K x N':>18}  bias  samebits.ops.linear   in C++   its questions   torch.empty   ratio")
    with standing_in() as stub, torch.no_grad():
        for rows, k, n, biased in CASES:
            x, weight = (torch.randn(lines, k).bfloat16() for lines in (rows, n))
            bias = torch.randn(n).bfloat16() if biased else None
            given = (x, weight, bias)
            sides = {
                "python": partial(ops.linear, *given),
                "cpp": partial(stub.module.linear, *given),
                "questions": partial(stub.module.refusal, *given),
                "memory": partial(torch.empty, rows, n, dtype=torch.bfloat16),
            }
            for call in [*sides.values()] * 2:
                call()
            before = stub.module.counted()
            found = microseconds(sides)
            after = stub.module.counted()
            assert (after[0] - before[0], after[1]) == (CALLS * ROUNDS, before[1]), "calls were handed to Python"
            sizes, ratio = f"{rows} x {k} x {n}", found["python"] / found["cpp"]
            shown = f"{found['python']:19.2f} {found['cpp']:8.2f} {found['questions']:15.2f} {found['memory']:13.2f}"
            print(f"{sizes:>18}  {'yes' if biased else 'no':4} {shown} {ratio:7.1f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
