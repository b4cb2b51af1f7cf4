"""Calls launched in C++ on a GPU have the bits of Python's functions; what a user sees of the switch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import samebits
from samebits import ops
from samebits.ops.contracts.host_launch import triton_calls
from samebits.ops.contracts.host_launch.compared import NEEDED, Found
from samebits.ops.contracts.host_launch.faults import _NOTHING_LAUNCHED
from samebits.ops.contracts.host_launch.on_device import found, same_bits

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, none is visible")


@pytest.fixture(autouse=True)
def poisoned_memory() -> None:
    """Nothing is filled here: a call that fills memory does more than launch."""


@pytest.fixture(autouse=True)
def switched() -> Iterator[None]:
    samebits.launch_in_cpp()
    with torch.no_grad():
        yield
    samebits.launch_in_cpp(False)


def operands(rows: int = 16) -> tuple[Tensor, Tensor]:
    return (
        torch.randn(rows, 64, device="cuda", dtype=torch.bfloat16),
        torch.randn(96, 64, device="cuda").to(torch.bfloat16),
    )


def launched(*given: Tensor) -> Tensor:
    """By the third call of its kind, in C++."""
    for _ in range(NEEDED - 1):
        ops.linear(*given)
    before = triton_calls.counted()["linear"]
    out: Tensor = ops.linear(*given)
    assert triton_calls.counted()["linear"] == (before[0] + 1, before[1])
    return out


def test_every_call_is_pythons() -> None:
    assert found() == Found(differing=(), unheard=(), too_many=())


def test_three_launches_with_memory_between_them() -> None:
    """Rows that several programs share."""
    x = torch.randn(2, 128256, device="cuda", dtype=torch.bfloat16)
    for _ in range(NEEDED - 1):
        expected = ops.softmax(x)
    before = triton_calls.counted()["softmax"]
    for _ in range(3):
        assert torch.equal(ops.softmax(x), expected)
    assert triton_calls.counted()["softmax"] == (before[0] + 3, before[1])


def test_memory_that_nobody_wrote_is_noticed() -> None:
    assert found(record=_NOTHING_LAUNCHED).differing


def test_a_call_is_launched_in_cpp_and_says_so() -> None:
    given = operands()
    assert same_bits(launched(*given), triton_calls.linear.__wrapped__(*given))  # type: ignore[attr-defined]
    assert triton_calls.state().startswith("calls on a GPU are launched in C++: ")


def test_on_another_stream() -> None:
    given, cuda = operands(), torch.cuda
    launched(*given)
    side: Any = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        cuda._sleep(10_000_000)  # a launch on the first stream would not wait for this
        given[0].zero_()
        out = launched(*given)
    cuda.synchronize()
    assert not out.any()


def test_in_a_captured_graph() -> None:
    given = operands()
    launched(*given)
    graph, before = torch.cuda.CUDAGraph(), triton_calls.counted()["linear"][0]
    with torch.cuda.graph(graph):
        captured = ops.linear(*given)
    assert triton_calls.counted()["linear"][0] == before + 1
    given[0].copy_(torch.randn_like(given[0]))
    graph.replay()
    assert same_bits(captured, triton_calls.linear.__wrapped__(*given))  # type: ignore[attr-defined]


def test_a_first_call_in_a_captured_graph_is_pythons() -> None:
    given = operands(rows=23)
    triton_calls.linear.__wrapped__(*given)  # type: ignore[attr-defined]
    before = triton_calls.counted().get("linear", (0, 0))[0]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(NEEDED):
            captured = ops.linear(*given)
    graph.replay()
    assert triton_calls.counted()["linear"][0] == before
    assert same_bits(captured, triton_calls.linear.__wrapped__(*given))  # type: ignore[attr-defined]


def test_gradients_are_pythons() -> None:
    x, weight = operands()
    launched(x, weight)
    with torch.enable_grad():
        ops.linear(x.requires_grad_(), weight).sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape
