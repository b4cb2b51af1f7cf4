"""Functions of numbers that 16 bits hold, on the GPU: every number, and every one of them through SwiGLU and GELU."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from tests.repository.documents import PROJECT

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, none is visible")


@pytest.fixture
def bits(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    import gpu_rows_bits as module

    return module


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_16_bit_number_has_the_bits_of_the_definition(bits: ModuleType, dtype: torch.dtype) -> None:
    found = bits.differing(dtype, bits.of_functions(dtype, "cuda")) | bits.differing(
        dtype, bits.of_kernels(dtype, "cuda")
    )
    assert len(found) == 11 and not any(found.values()), found


@needs_gpu
def test_the_comparison_can_fail(bits: ModuleType) -> None:
    """Planted fault: the neighbour's result is compared instead."""
    shifted = [
        (name, lambda ours=ours: ours().roll(1), expected)
        for name, ours, expected in bits.of_gelu(torch.bfloat16, "cuda")
    ]
    assert all(bits.differing(torch.bfloat16, shifted).values())
