"""Launches that are made again hand to Triton's function in C what Triton itself would hand to it; no GPU is needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import triton
from triton.backends.nvidia.driver import wrap_handle_tensordesc

from samebits.ops._triton import repeated
from samebits.ops._triton.launch import Described
from samebits.ops._triton.repeated import Repeated, c_function

SIGNATURE = {
    0: "tensordesc<bf16[8, 16]>",
    1: "*bf16",
    2: "tensordesc<bf16[4, 16]>",
    3: "i32",
    4: "constexpr",
    5: "constexpr",
}
METADATA = [
    {"swizzle": 3, "elem_size": 2, "elem_type": 10, "block_size": [8, 16], "fp4_padded": False},
    {"swizzle": 2, "elem_size": 2, "elem_type": 10, "block_size": [4, 16], "fp4_padded": False},
]
PACKED = (4, 1, 1024)


def arguments_at(*offsets: int) -> tuple[Any, ...]:
    """Two described matrices and a plain one, each of 32 rows of 16, at these rows of their memory."""
    first, second, third = (memory[offset : offset + 32] for memory, offset in zip(MEMORY, offsets, strict=True))
    return Described(first, [32, 16], [16, 1], [8, 16]), second, Described(third, [32, 16], [16, 1], [4, 16]), 7, None


MEMORY = [torch.zeros(64, 16, dtype=torch.bfloat16) for _ in range(3)]
PLACES = ((0, 0, 0), (0, 0, 0), (8, 0, 16), (0, 24, 16), (8, 0, 16))


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the function in C was called with. A descriptor is replaced by what it would be made from."""

    def descriptor(address: int, *facts: Any) -> tuple[Any, ...]:
        return ("descriptor", address, *(tuple(each) if isinstance(each, list) else each for each in facts))

    utilities = SimpleNamespace(fill_tma_descriptor=descriptor)
    monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=SimpleNamespace(utils=utilities)))
    monkeypatch.setattr(repeated, "c_function", lambda launch: launch)
    return []


def compiled(received: list[tuple[Any, ...]]) -> Any:
    def launch(*given: Any) -> None:
        received.append(given)

    metadata = SimpleNamespace(tensordesc_meta=METADATA, global_scratch_size=0, profile_scratch_size=0)
    run = SimpleNamespace(launch=launch, launch_cooperative_grid=False, launch_pdl=True)
    return SimpleNamespace(name="kernel", function=11, packed_metadata=PACKED, metadata=metadata, run=run)


def by_triton(received: list[tuple[Any, ...]], offsets: tuple[int, ...]) -> tuple[Any, ...]:
    """What Triton's own wrapper would hand on; its function in C asks a tensor for its address itself."""
    through = wrap_handle_tensordesc(lambda *given: received.append(given), SIGNATURE, METADATA)
    through(5, 1, 1, 99, 11, False, True, None, None, PACKED, None, None, None, *arguments_at(*offsets), 16)
    return tuple(each.data_ptr() if isinstance(each, torch.Tensor) else each for each in received.pop())


def test_a_repeated_launch_is_tritons(received: list[tuple[Any, ...]]) -> None:
    kernel = Repeated(compiled(received), (16,))
    for offsets in PLACES:
        kernel(5, 99, arguments_at(*offsets))
        assert received.pop() == by_triton(received, offsets)


def test_a_bound_launch_is_tritons(received: list[tuple[Any, ...]]) -> None:
    bound = Repeated(compiled(received), (16,)).bound(5, arguments_at(0, 0, 0))
    for offsets in PLACES:
        bound(99, *(memory[offset:].data_ptr() for memory, offset in zip(MEMORY, offsets, strict=True)))
        assert received.pop() == by_triton(received, offsets)


def test_a_descriptor_kept_by_its_sizes_alone_would_be_seen(
    received: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: every matrix of a size is taken for the first of that size."""
    kernel = Repeated(compiled(received), (16,))
    with monkeypatch.context() as planted:
        planted.setattr(repeated, "make_tensordesc_arg", lambda described, metadata: [("first",), 32, 16, 16, 1])
        kernel(5, 99, arguments_at(8, 0, 16))
    assert received.pop() != by_triton(received, (8, 0, 16))


def test_too_many_addresses_are_forgotten(received: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated, "KEPT", 2)
    kernel = Repeated(compiled(received), (16,))
    for offsets in [(row, 0, row) for row in range(8)] * 2:
        kernel(5, 99, arguments_at(*offsets))
        assert received.pop() == by_triton(received, offsets)
    assert max(map(len, kernel._kept)) <= 2


def test_a_wrong_number_of_addresses_is_refused(received: list[tuple[Any, ...]]) -> None:
    bound = Repeated(compiled(received), (16,)).bound(5, arguments_at(0, 0, 0))
    with pytest.raises(ValueError, match="zip"):
        bound(99, 0, 0)
    assert received == []


def test_a_kernel_that_needs_scratch_memory_is_refused(received: list[tuple[Any, ...]]) -> None:
    kernel = compiled(received)
    kernel.metadata.global_scratch_size = 64
    with pytest.raises(RuntimeError, match="kernel needs scratch memory"):
        Repeated(kernel, (16,))(5, 99, arguments_at(0, 0, 0))


def test_the_function_in_c_is_found_or_its_absence_is_said() -> None:
    assert c_function(print) is print
    assert c_function(wrap_handle_tensordesc(print, SIGNATURE, METADATA)) is print
    with pytest.raises(RuntimeError, match="allowed: a function in C"):
        c_function(lambda *_: None)
