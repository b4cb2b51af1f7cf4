"""Torch at rest: one thread for torch, all for our kernels, and everything as before when the block ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import torch

from samebits.native.launch_numbers import forced, launching
from samebits.numerics.bits import same_bits
from samebits.ops.matmul import matmul
from samebits.ops.threads import torch_at_rest

CPU = torch.device("cpu")


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_our_kernels_keep_the_threads_that_torch_gives_up() -> None:
    a, b = torch.randn(50, 70), torch.randn(70, 90)
    before = matmul(a, b)
    with ExitStack() as blocks:
        for _ in range(2):
            blocks.enter_context(torch_at_rest(CPU))
            assert torch.get_num_threads() == 1 and forced("threads") == 3
        assert same_bits(matmul(a, b), before)
    assert torch.get_num_threads() == 3 and forced("threads") is None


@pytest.mark.usefixtures("three_threads")
def test_an_error_gives_the_threads_back() -> None:
    with pytest.raises(ArithmeticError), torch_at_rest(CPU):
        raise ArithmeticError
    assert torch.get_num_threads() == 3 and forced("threads") is None


@pytest.mark.usefixtures("three_threads")
def test_what_was_forced_stays_forced_and_a_gpu_is_left_alone() -> None:
    with launching(threads=7), torch_at_rest(CPU):
        assert torch.get_num_threads() == 3 and forced("threads") == 7
    with torch_at_rest(torch.device("cuda")):
        assert torch.get_num_threads() == 3 and forced("threads") is None
