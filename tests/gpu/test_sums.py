"""Sums along rows of float32 in invariant mode on the GPU: the chains of the CPU, wherever a row is in memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from samebits.invariant.sums import float32_sum, resume_sum
from samebits.numerics.bits import same_bits
from samebits.ops._triton.launch import launch_count

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, none is visible")
NAME = "chains_along_rows"


def rows_of(M: int, K: int) -> Tensor:
    """Sums that must round, and rows of zeros of both signs, infinities and NaN."""
    x = torch.randn(M, K, generator=torch.Generator().manual_seed(M * 1009 + K)) * 2.0 ** torch.randint(-6, 7, (M, K))
    for row, value in enumerate((0.0, -0.0, float("inf"), float("nan"), 2.0**-149)):
        if row < M - 1:
            x[row, K // 2 :] = value
    return x


@pytest.mark.parametrize("K", [1, 2, 31, 32, 33, 64, 127, 128, 576, 2048, 2055])
@pytest.mark.parametrize("M", [1, 5, 32, 33, 1000])
def test_they_are_the_cpus(M: int, K: int) -> None:
    x, before = rows_of(M, K), launch_count(NAME)
    assert same_bits(float32_sum(x.cuda(), -1, True).cpu(), float32_sum(x, -1, True))
    assert launch_count(NAME) == before + 1


@pytest.mark.parametrize(("offset", "padding"), [(0, 0), (0, 4), (0, 1), (1, 0), (3, 5), (4, 4)])
def test_where_a_row_is_in_memory_does_not_matter(offset: int, padding: int) -> None:
    x = rows_of(70, 300)
    storage = torch.full((70 * (300 + padding) + offset,), float("nan"), device="cuda")
    there = storage[offset:].view(70, 300 + padding)[:, :300].copy_(x)
    assert same_bits(float32_sum(there, -1, False).cpu(), float32_sum(x, -1, False))


def test_a_chain_goes_on_where_it_was_left() -> None:
    x = rows_of(40, 100)
    sums = torch.zeros(40, 1, device="cuda")
    for first, last in ((0, 1), (1, 33), (33, 40), (40, 100)):
        resume_sum(sums, x[:, first:last].cuda(), -1)
    assert same_bits(sums.cpu(), float32_sum(x, -1, True))


def test_the_rows_tell_orders_apart() -> None:
    """The negative control: torch's own sum, and one in halves, are others."""
    x = rows_of(1000, 576)
    ours = float32_sum(x.cuda(), -1, False).cpu()
    halves = float32_sum(x[:, :288], -1, False) + float32_sum(x[:, 288:], -1, False)
    assert not same_bits(ours, x.cuda().sum(-1).cpu()) and not same_bits(ours, halves)
