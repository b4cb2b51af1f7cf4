"""Bits of calls launched in C++ on a GPU beside those of Python's functions: every product of four models, layouts,
another stream, a captured graph."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from samebits.bench.shapes import MODELS, Weight, weights
from samebits.ops.contracts.host_launch import triton_calls
from samebits.ops.contracts.host_launch.compared import NEEDED
from samebits.ops.contracts.host_launch.on_device import found, same_bits
from samebits.ops.contracts.host_launch.poisoning import poisoned_memory

NAMES = ("llama-3-8b", "qwen3-8b", "qwen3-1.7b", "smollm2-135m")
ROWS = (1, 2, 7, 16, 17, 32, 33, 64, 128, 129, 512, 2048, 8192, 16384)
# Other layouts and formats: a row of each kind of launch, for one weight of a small model.
FEWER_ROWS = (1, 17, 64, 129, 2048)
Given = tuple[Any, ...]


def shapes() -> Iterator[tuple[str, Weight]]:
    return ((name, weight) for name in NAMES for weight in weights(MODELS[name]))


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def usual(rows: int, weight: Weight, dtype: torch.dtype = torch.bfloat16) -> Given:
    return random(rows, weight.k, dtype=dtype), random(weight.n, weight.k, dtype=dtype)


def with_bias(rows: int, weight: Weight) -> Given:
    return *usual(rows, weight), random(weight.n)


def columns_of_wider(rows: int, weight: Weight) -> Given:
    return random(rows, 2 * weight.k)[:, : weight.k], random(weight.n, weight.k)


def transposed(rows: int, weight: Weight) -> Given:
    return random(weight.k, rows).T, random(weight.k, weight.n).T


def off_by_one(rows: int, weight: Weight) -> Given:
    """No descriptor takes x: its first number is not at a multiple of 16 bytes."""
    return random(rows * weight.k + 1)[1:].view(rows, weight.k), random(weight.n, weight.k)


def three_axes(rows: int, weight: Weight) -> Given:
    return random(1, rows, weight.k), random(weight.n, weight.k)


LAYOUTS: dict[str, Callable[[int, Weight], Given]] = {
    "bias": with_bias,
    "columns": columns_of_wider,
    "transposed": transposed,
    "off by one": off_by_one,
    "three axes": three_axes,
    "float16": partial(usual, dtype=torch.float16),
    "float32": partial(usual, dtype=torch.float32),
}


def in_cpp(name: str) -> int:
    """Calls of a function that C++ launched so far."""
    return triton_calls.counted().get(name, (0, 0))[0]


def difference(name: str, words: str, given: Given) -> str | None:
    """What is wrong with a call in C++, the first of its kind that is; None where nothing is."""
    call: Any = getattr(triton_calls, name)
    expected = call.__wrapped__(*given)
    made = [call(*given) for _ in range(NEEDED - 1)]
    before = in_cpp(name)
    with poisoned_memory():
        made.append(call(*given))
    if in_cpp(name) != before + 1:
        return f"{name} {words}: not launched in C++"
    return None if all(same_bits(expected, each) for each in made) else f"{name} {words}: bits differ"


def elsewhere(name: str, given: Given) -> Iterator[str]:
    """On another stream, and from a CUDA graph."""
    call: Any = getattr(triton_calls, name)
    cuda: Any = torch.cuda
    for _ in range(NEEDED):
        call(*given)
    side = cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        cuda._sleep(10_000_000)  # a launch on the first stream would not wait for this
        given[0].zero_()
        made = call(*given)
    torch.cuda.synchronize()
    if not same_bits(made, call.__wrapped__(*given)):
        yield f"{name}, another stream: launched before what came first on it"
    graph, before = torch.cuda.CUDAGraph(), in_cpp(name)
    with torch.cuda.graph(graph):
        captured = call(*given)
    if in_cpp(name) != before + 1:
        yield f"{name}, a graph: not launched in C++"
    given[0].copy_(random(*given[0].shape))
    graph.replay()
    if not same_bits(captured, call.__wrapped__(*given)):
        yield f"{name}, a graph: bits differ"


def differences() -> list[str]:
    """All that is wrong; nothing is timed then."""
    told = found()
    wrong = [f"calls that are not Python's: {each}" for each in told.differing]
    wrong += [f"not heard: {each}" for each in told.unheard]
    wrong += [f"launched though it does more: {each}" for each in told.too_many]
    print("cases of the contract, modes and kinds of tensors: compared", flush=True)
    count = 0
    for name, weight in shapes():
        for rows in ROWS:
            words = f"{name} {weight.name} {rows}x{weight.k}x{weight.n}"
            wrong += filter(None, [difference("linear", words, usual(rows, weight))])
            count += 1
        print(f"linear: {count} products compared, {name} {weight.name}", flush=True)
    small = weights(MODELS["smollm2-135m"])[2]
    for (words, make), rows in itertools.product(LAYOUTS.items(), FEWER_ROWS):
        wrong += filter(None, [difference("linear", f"{words}, {rows} rows", make(rows, small))])
    wrong += elsewhere("linear", usual(16, small))
    wrong += elsewhere("add_rmsnorm", (random(16, 576), random(16, 576), random(576)))
    return wrong
