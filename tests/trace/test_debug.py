"""The debug mode, check by check, each with a planted fault: beside memory, unwritten, miscounted, too large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tests.trace.planted_bugs import swapped_gemm
from torch import Tensor, nn

from samebits import ops
from samebits.ops.matmul import cpu_kernel
from samebits.trace import debug
from samebits.trace.findings import Findings


@pytest.fixture(autouse=True)
def poisoned_memory() -> None:
    """As a user's process is: fresh memory is what the debug mode makes of it."""


def found_in(work: Callable[[], object]) -> list[tuple[str, str, str, str]]:
    findings = Findings()
    with debug.checking(findings):
        work()
    return [(each.granularity, each.place, each.contract, each.message) for each in findings]


def with_gemm(change: Callable[[Tensor], object], **sizes: int) -> list[tuple[str, str, str, str]]:
    """What is found of a product after whose kernel its result is changed."""
    real = cpu_kernel.gemm

    def faulty(*given: Tensor, **named: Any) -> Tensor:
        out = real(*given, **named)
        change(out)
        return out

    x, weight = torch.randn(sizes.get("m", 8), sizes.get("k", 12)), torch.randn(sizes.get("n", 5), sizes.get("k", 12))
    with patch.object(cpu_kernel, "gemm", faulty):
        return found_in(lambda: ops.linear(x, weight))


def beside(offset: int) -> Callable[[Tensor], None]:
    """Writes a number so many elements from the start of a buffer."""

    def write(out: Tensor) -> None:
        torch.as_strided(out, (1,), (1,), out.storage_offset() + offset).fill_(1.0)

    return write


@pytest.mark.parametrize(("offset", "words"), [(-1, "4 bytes before the start"), (42, "12 bytes behind the end")])
def test_a_write_beside_a_buffer_is_found(offset: int, words: str) -> None:
    (found,) = with_gemm(beside(offset))
    assert found[:3] == ("kernel", "gemm", debug.BUFFERS)
    assert words in found[3] and "a buffer of 160 (8x5 float32, made in gemm)" in found[3]


def test_what_a_kernel_does_not_write_is_found() -> None:
    def leaves_out(out: Tensor) -> None:
        out.view(torch.int32)[3:, 4] = 0x7FEDFACE

    found = with_gemm(leaves_out)
    assert ("kernel", "gemm", debug.ZEROS, "5 elements of its result 8x5 were never written") in found


def test_a_kernel_that_writes_nothing_is_found() -> None:
    """The pattern is what fresh memory holds, not what the test puts there."""
    x, weight = torch.randn(8, 12), torch.randn(5, 12)
    with patch.object(cpu_kernel, "gemm", lambda a, b, bias_N=None: torch.empty(len(a), b.shape[1])):
        found = found_in(lambda: ops.linear(x, weight))
    assert [each[2] for each in found] == [debug.PRODUCTS, debug.ZEROS] and found[1][3].startswith("40 elements")


def test_a_wrong_product_is_found_and_not_called_a_swap() -> None:
    (found,) = with_gemm(lambda out: out.mul_(1.001))
    assert found[:3] == ("kernel", "gemm", debug.PRODUCTS)
    assert "m=8, n=5, k=12" in found[3] and "swapped" not in found[3]


@pytest.mark.parametrize("sizes", [(8, 5, 12), (8, 12, 5), (32, 7, 9), (3, 40, 4)], ids=str)
def test_sizes_in_each_others_place_are_called_so(sizes: tuple[int, int, int]) -> None:
    """Deeper than wide, which overflows, and wider than deep, which leaves memory unwritten: both by the product."""
    m, n, k = sizes
    findings = Findings()
    with debug.checking(findings), patch.object(cpu_kernel, "gemm", swapped_gemm):
        # Placed between zones, so that what is read beside them is memory of this test.
        ops.linear(torch.randn(m, k).clone(), torch.randn(n, k).clone())
    first = next(iter(findings))
    assert first.contract == debug.PRODUCTS and f"n and k swapped: m={m}, n={n}, k={k}" in first.message
    assert {each.contract for each in findings} == {debug.PRODUCTS, debug.BUFFERS if k > n else debug.ZEROS}


def test_a_product_that_goes_on_is_checked_against_what_was_there() -> None:
    sums, a, b = torch.randn(4, 6), torch.randn(4, 9), torch.randn(9, 6)
    assert found_in(lambda: ops.matmul_accumulate_(sums.clone(), a, b)) == []
    real = cpu_kernel.gemm

    def from_zero(*given: Tensor, accumulator_MN: Tensor) -> Tensor:
        return real(*given, accumulator_MN=accumulator_MN.zero_())

    with patch.object(cpu_kernel, "gemm", from_zero):
        (found,) = found_in(lambda: ops.matmul_accumulate_(sums.clone(), a, b))
    assert found[:3] == ("kernel", "gemm_accumulate_", debug.PRODUCTS)


def test_products_in_every_format_and_of_every_size_are_right() -> None:
    def work() -> None:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for m, n, k in ((1, 1, 1), (1, 64, 300), (33, 5, 17), (2, 3, 0), (0, 4, 4)):
                ops.linear(torch.randn(m, k, dtype=dtype), torch.randn(n, k, dtype=dtype), torch.randn(n, dtype=dtype))
                ops.matmul(torch.randn(m, k, dtype=dtype) * 1e-20, torch.randn(k, n, dtype=dtype) * 1e-20)

    assert found_in(work) == []


@pytest.mark.parametrize(
    ("into", "source", "wrong"),
    [((4, 6), (6,), True), ((4, 6), (4, 1), True), ((4, 6), (4, 6), False), ((4, 6), (), False), ((24,), (24,), False)],
)
def test_a_copy_of_other_sizes_is_found(into: tuple[int, ...], source: tuple[int, ...], wrong: bool) -> None:
    """A number may be spread over a tensor; a tensor may not."""
    found = found_in(lambda: torch.zeros(into).copy_(torch.ones(source)))
    assert bool(found) == wrong
    if wrong:
        assert found[0][0] == "transfer" and found[0][1].startswith("test_debug.py:") and "into 24" in found[0][3]


class Net(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.first, self.second, self.scale = nn.Linear(4, 4), nn.Linear(4, 4), scale

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x) * self.scale)
        return y


@pytest.mark.parametrize(
    ("scale", "wrong"), [(1.0, None), (1e25, "the largest is"), (float("inf"), "elements are not finite")]
)
def test_a_gradient_beyond_what_a_moment_holds_is_found(scale: float, wrong: str | None) -> None:
    """At the border over which it flows back: of `first`, whose output was multiplied."""
    found = found_in(lambda: Net(scale)(torch.ones(2, 4)).sum().backward())
    assert bool(found) == (wrong is not None)
    if wrong:
        assert found[0][:3] == ("block", "first", debug.ACTIVATIONS) and wrong in found[0][3]


def test_shapes_without_numbers_pass() -> None:
    x, weight = torch.empty(3, 4, device="meta"), torch.empty(5, 4, device="meta")
    assert found_in(lambda: torch.ops.samebits.gemm(x, weight.T, None, "cpu")) == []


def test_modes_and_memory_are_put_back() -> None:
    hooks = dict(nn.modules.module._global_forward_hooks)
    with pytest.raises(KeyError), debug.checking():
        assert len(nn.modules.module._global_forward_hooks) > len(hooks)
        raise KeyError
    assert torch._C._len_torch_dispatch_stack() == 0
    assert nn.modules.module._global_forward_hooks == hooks
