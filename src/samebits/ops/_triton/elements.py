"""Element by element in Triton, for every operator whose outputs each depend on one place of the inputs alone.

Knows no operator. A tensor is a line of N elements, cut into blocks; offsets are 64 bits wide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from samebits.ops._triton.device import on_device
from samebits.ops._triton.forced import forced_launch
from samebits.ops._triton.launch import run
from samebits.ops._triton.sizes import cdiv


@dataclass(frozen=True, kw_only=True, slots=True)
class ElementLaunch:
    """Decides speed, never bits."""

    block: int = 1024
    """Elements of a program."""
    warps: int = 4


ELEMENT_LAUNCH: Final = ElementLaunch()


@triton.jit
def elements_of(N, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    """Offsets of a program's block, and which of them exist."""
    # A multiple of 8 in a form that the compiler can see.
    length = N // 8 * 8 if ALIGNED else N
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return offsets, offsets < length


@triton.jit
def element_pointers(ptr, offsets, ALIGNED: tl.constexpr):
    """Addresses of a block; ALIGNED: base and length are multiples of 16 bytes, so accesses can be as wide."""
    pointers = ptr + offsets
    if ALIGNED:
        pointers = tl.multiple_of(pointers, 16)
    return pointers


@triton.jit
def load_elements(ptr, offsets, inside, ALIGNED: tl.constexpr):
    """A block in float32; what does not exist is 0."""
    return tl.load(element_pointers(ptr, offsets, ALIGNED), mask=inside, other=0.0).to(tl.float32)


@triton.jit
def store_elements(ptr, offsets, value, inside, ALIGNED: tl.constexpr):
    """A block of float32, rounded once to what `ptr` holds."""
    tl.store(element_pointers(ptr, offsets, ALIGNED), value.to(ptr.dtype.element_ty), mask=inside)


def run_elements(kernel: Any, *inputs: Tensor, outputs: int = 1, **constants: Any) -> list[Tensor]:
    """Launch kernel(*inputs, *outputs, N, *constants, BLOCK, ALIGNED) over contiguous tensors of one size."""
    made = [torch.empty_like(inputs[0]) for _ in range(outputs)]
    tensors = (*inputs, *made)
    launch = forced_launch(ElementLaunch) or ELEMENT_LAUNCH
    size = tensors[0].numel()
    aligned = size % 8 == 0 and all(tensor.data_ptr() % 16 == 0 for tensor in tensors)
    with on_device(tensors[0]):
        run(
            kernel,
            cdiv(size, launch.block),
            (*tensors, size),
            warps=launch.warps,
            stages=1,
            **constants,
            BLOCK=launch.block,
            ALIGNED=aligned,
        )
    return made
