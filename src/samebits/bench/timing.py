"""Both sides in turns, so that they meet the same clocks: calls on a CPU, kernels and calls on a GPU, whole steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from samebits.bench.cases import Side
from samebits.bench.cuda_timing import Calls, call_times, copies, kernel_times

CPU_ROTATED_BYTES: Final = 64 * 2**20
"""More than the last cache of most CPUs: inputs rotate, as a model's layers do."""


def rotated(device: torch.device, bytes_each: int) -> int:
    """How many sets of inputs outgrow the cache of this device."""
    return copies(bytes_each) if device.type == "cuda" else copies(bytes_each, CPU_ROTATED_BYTES)


def kernel_seconds(sides: Mapping[str, Calls], device: torch.device, budget: float, rounds: int) -> dict[str, float]:
    """Median seconds of a call by side, without the host's share on a GPU. `budget`: seconds of one measurement."""
    if device.type == "cuda":
        found = kernel_times(list(sides.values()), budget * 1e3, rounds)
        return {name: statistics.median(times) / 1e3 for name, times in zip(sides, found, strict=True)}
    return _cpu_seconds(sides, budget, rounds)


def call_seconds(sides: Mapping[str, Calls], budget: float, rounds: int) -> dict[str, float]:
    """Median seconds of calls made one after the other on a GPU, the host's share included."""
    found = call_times(list(sides.values()), budget * 1e3, rounds)
    return {name: statistics.median(times) / 1e3 for name, times in zip(sides, found, strict=True)}


def _cpu_seconds(sides: Mapping[str, Calls], budget: float, rounds: int) -> dict[str, float]:
    counts = {}
    for name, calls in sides.items():
        calls[0]()
        counts[name] = max(1, min(1000, int(budget / max(_timed(calls, 1), 1e-7))))
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, calls in sides.items():
            times[name].append(_timed(calls, counts[name]))
    return {name: statistics.median(each) for name, each in times.items()}


def _timed(calls: Calls, count: int) -> float:
    start = time.perf_counter()
    for number in range(count):
        calls[number % len(calls)]()
    return (time.perf_counter() - start) / count


def seconds_of(run: Callable[[], Any], device: torch.device) -> float:
    """Of one call as a caller sees it: on a GPU until the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def turn_seconds(sides: Mapping[str, Side], rounds: int) -> dict[str, float]:
    """Median seconds of a step by side. Who is first changes from turn to turn."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds):
        for name in list(sides)[:: 1 if turn % 2 == 0 else -1]:
            times[name].append(sides[name]())
    return {name: statistics.median(each) for name, each in times.items()}
