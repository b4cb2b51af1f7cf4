"""The elementary functions and Philox by Triton, over whole arrays: no operator does nothing else."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from samebits.numerics.elementary import triton_generated as generated
from samebits.ops._triton.elements import elements_of, load_elements, run_elements, store_elements


@triton.jit(do_not_specialize=["N"], do_not_specialize_on_alignment=["x_ptr", "y_ptr"])
def function_elements(x_ptr, y_ptr, N: tl.int64, NAME: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    offsets, inside = elements_of(N, BLOCK, ALIGNED)
    y = generated.apply(load_elements(x_ptr, offsets, inside, ALIGNED), NAME)
    store_elements(y_ptr, offsets, y, inside, ALIGNED)


@triton.jit(do_not_specialize=["low", "high", "stream", "N"])
def philox_blocks(out_ptr, low, high, stream, N, BLOCK: tl.constexpr):
    """Word 4 * block + i is output i of the block."""
    block = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.uint32)
    zero = tl.zeros_like(block)
    key_low, key_high = (zero + low).to(tl.uint32), (zero + high).to(tl.uint32)
    a, b, c, d = generated.philox(block, zero, (zero + stream).to(tl.uint32), zero, key_low, key_high)
    tl.store(out_ptr + block * 4, a.to(tl.int32, bitcast=True), mask=block * 4 < N)
    tl.store(out_ptr + block * 4 + 1, b.to(tl.int32, bitcast=True), mask=block * 4 + 1 < N)
    tl.store(out_ptr + block * 4 + 2, c.to(tl.int32, bitcast=True), mask=block * 4 + 2 < N)
    tl.store(out_ptr + block * 4 + 3, d.to(tl.int32, bitcast=True), mask=block * 4 + 3 < N)


def apply(name: str, x: Tensor) -> Tensor:
    """name(x), x contiguous and float32."""
    return run_elements(function_elements, x, NAME=name)[0]


def words(seed: int, stream: int, count: int, device: torch.device) -> Tensor:
    """The first words of a stream, as int32."""
    out = torch.zeros(count, dtype=torch.int32, device=device)
    programs = triton.cdiv(count, 4 * 256)
    philox_blocks[(programs,)](out, seed & 0xFFFFFFFF, seed >> 32, stream, count, 256)
    return out
