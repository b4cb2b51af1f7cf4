"""Timing on a GPU: kernels by graph replays, calls as a user makes them, both sides in turns.

A graph of many launches has no host in it: it shows what the kernels cost. Calls made one after the other show what a
user sees, the host's share included. Inputs rotate, so that no side reads its weights from the cache."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

Calls = Sequence[Callable[[], Any]]
# More than twice the cache of an H200.
ROTATED_BYTES = 128 * 2**20


def copies(bytes_each: int, rotated: int = ROTATED_BYTES) -> int:
    """How many sets of inputs outgrow the cache."""
    return max(1, min(16, -(-rotated // max(1, bytes_each))))


def graph_of(calls: Calls, launches: int) -> torch.cuda.CUDAGraph:
    """`launches` calls, cycling through `calls`, captured after a warm-up."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(launches):
            calls[number % len(calls)]()
    return graph


def milliseconds(run: Callable[[], Any]) -> float:
    event: Any = torch.cuda.Event
    start, stop = event(enable_timing=True), event(enable_timing=True)
    start.record()
    run()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop))


def kernel_times(sides: Sequence[Calls], budget: float, rounds: int) -> list[list[float]]:
    """Milliseconds a launch, by side and round; `budget` milliseconds a measurement."""
    graphs, counts = [], []
    for calls in sides:
        calls[0]()
        once = max(milliseconds(calls[0]), 1e-3)
        counts.append(max(2 * len(calls), min(200, int(budget / once))))
        graphs.append(graph_of(calls, counts[-1]))
        graphs[-1].replay()
    times: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, (graph, count) in enumerate(zip(graphs, counts, strict=True)):
            times[side].append(milliseconds(graph.replay) / count)
    return times


def call_times(sides: Sequence[Calls], budget: float, rounds: int) -> list[list[float]]:
    """Milliseconds a call, made one after the other without waiting, by side and round."""
    times: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, calls in enumerate(sides):
            count = max(10, min(200, int(budget / max(milliseconds(calls[0]), 1e-3))))

            def loop(calls: Calls = calls, count: int = count) -> None:
                for number in range(count):
                    calls[number % len(calls)]()

            times[side].append(milliseconds(loop) / count)
    return times


def medians(times: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.median(side) for side in times]


@cache
def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a large copy."""
    source = torch.empty(2**31, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * source.numel() / statistics.median(1e-3 * milliseconds(lambda: target.copy_(source)) for _ in range(9))
