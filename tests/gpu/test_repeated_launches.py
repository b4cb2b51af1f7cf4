"""A product that is launched again from its sizes equals the one launched the long way: addresses, strides, biases."""

from __future__ import annotations

import itertools
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from samebits.native.launch_numbers import launching
from samebits.numerics.bits import compare
from samebits.ops.matmul import linear, matmul
from samebits.ops.matmul.launch_table import ONE_WAVE

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, none is visible")

SIZES = ((1, 64, 64), (3, 576, 1536), (48, 1536, 576), (200, 512, 264), (1000, 256, 1024))


@pytest.fixture
def again() -> Any:
    module = import_module("samebits.ops.matmul.triton_again")
    module._known.clear()
    return module


def drawn(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("biased", [False, True])
def test_products_again(again: Any, dtype: torch.dtype, biased: bool) -> None:
    for rows, depth, columns in SIZES:
        for turn in range(4):
            x, weight = drawn(rows, depth, dtype=dtype), drawn(columns, depth, dtype=dtype)
            bias = drawn(columns, dtype=dtype) if biased else None
            found = linear(x, weight, bias)
            known = dict(again._known)
            again._known.clear()
            anew = linear(x, weight, bias)
            again._known.update(known)
            difference = compare(found.cpu(), anew.cpu())
            assert difference is None, f"{rows}x{depth}x{columns} turn {turn}: {difference}"
    assert len(again._known) == len(SIZES)


def test_the_launch_is_made_again(again: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept is used: from the second product of a size on, nothing is chosen."""
    x, weight = drawn(16, 512, dtype=torch.bfloat16), drawn(256, 512, dtype=torch.bfloat16)
    first = linear(x, weight)
    kernel = import_module("samebits.ops.matmul.triton_kernel")

    def chosen(*_: Any, **__: Any) -> None:
        raise AssertionError("a launch was chosen again")

    monkeypatch.setattr(kernel, "select", chosen)
    assert compare(first.cpu(), linear(x, weight).cpu()) is None


def test_a_forced_launch_is_not_kept(again: Any) -> None:
    x, weight = drawn(16, 512, dtype=torch.bfloat16), drawn(256, 512, dtype=torch.bfloat16)
    with launching(launch=ONE_WAVE):
        forced = linear(x, weight)
    assert again._known == {}
    assert compare(forced.cpu(), linear(x, weight).cpu()) is None


def test_strides_and_offsets_that_differ_are_not_taken_for_each_other(again: Any) -> None:
    """Same shapes, other memory: transposed, strided, shifted by one element, on a stream of its own."""
    memory = drawn(80, 1040, dtype=torch.bfloat16)
    weight = drawn(512, 384, dtype=torch.bfloat16)
    views = (
        memory[:48, :512],
        memory[:48, 8:520],
        memory[:48, 1:513],
        memory[16:64, :512],
        memory.T.contiguous().T[:48, :512],
        memory[:48, :1024:2],
    )
    wanted = [matmul(each.contiguous().clone(), weight).cpu() for each in views]
    stream: Any = torch.cuda.Stream()
    for turn, (view, want) in itertools.product(range(3), zip(views, wanted, strict=True)):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream if turn == 2 else torch.cuda.current_stream()):
            found = matmul(view, weight)
        torch.cuda.synchronize()
        assert compare(found.cpu(), want) is None, f"turn {turn}, strides {view.stride()}"


def test_a_descriptor_of_other_memory_is_seen(again: Any) -> None:
    """The planted fault: the second operand of a size is read where the first one is."""
    weight = drawn(256, 512, dtype=torch.bfloat16)
    first, second = drawn(16, 512, dtype=torch.bfloat16), drawn(16, 512, dtype=torch.bfloat16)
    linear(first, weight)
    wanted = linear(second, weight).cpu()
    (product,) = again._known.values()
    place = product.bound._places[1 if product.swapped else 0]
    sound = place.value(second.data_ptr())
    place._kept[second.data_ptr()] = place.value(first.data_ptr())
    assert compare(linear(second, weight).cpu(), wanted) is not None
    place._kept[second.data_ptr()] = sound
    assert compare(linear(second, weight).cpu(), wanted) is None
