"""What a block keeps in memory: nothing of a graph that is dropped, and nothing that a gradient was computed from."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from samebits.invariant import invariant_mode

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "its own result is saved": torch.exp,
    "a norm": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "softmax": lambda x: x.softmax(-1),
    "sigmoid of a product": lambda x: torch.sigmoid(x @ x.T),
    "attention": lambda x: nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]),
}


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    """What only a collector frees stays until it comes, and some of it can no collector free."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def memory_of(x: Tensor) -> Any:
    return StorageWeakRef(x.untyped_storage())  # type: ignore[no-untyped-call]


def is_freed(function: Callable[[Tensor], Tensor], around: AbstractContextManager[Any]) -> bool:
    """Whether a graph without a backward goes with its result."""
    weight = torch.randn(4, 8, requires_grad=True)
    with around:
        x = weight * 1.5
        y = function(x)
        seen = [memory_of(x), memory_of(y)]
        del x, y
        return all(each.expired() for each in seen)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_graph_that_is_dropped_is_freed(name: str) -> None:
    assert is_freed(FUNCTIONS[name], invariant_mode())


def test_a_graph_that_keeps_itself_is_noticed() -> None:
    """The negative control: hooks that keep a result as it is, graph and all."""
    assert not is_freed(torch.exp, saved_tensors_hooks(lambda x: x, lambda x: x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_keeps_nothing_that_it_was_computed_from(dtype: torch.dtype) -> None:
    layers = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)).to(dtype)
    seen: list[Any] = []
    for layer in layers:
        layer.register_forward_hook(lambda _, __, output: seen.append(memory_of(output)))
    x = torch.randn(4, 8, dtype=dtype)
    with invariant_mode():
        layers(x).float().sum().backward()
        assert all(weight.grad is not None for weight in layers.parameters())
        assert len(seen) == len(layers) and all(each.expired() for each in seen)
