"""Row by row in Triton, for every operator whose rows are independent: blocks of rows, the fold of lanes, launch
numbers.

Knows no operator. No sum is left to a reduction whose order the compiler would choose."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class RowLaunch:
    """Decides speed, never bits."""

    rows: int = 4
    """Rows of a tile."""
    columns: int = 32
    """Columns of a tile; the kernels that sum over the row always take a block of LANES columns."""
    warps: int = 4
    stages: int = 2


@triton.jit
def one_addition(low, high):
    return low + high


@triton.jit
def fold_by_halves(lanes, ROWS: tl.constexpr):
    """256 lanes to one sum: lane l takes lane l + 128, then l + 64, and so on down to l + 1.

    Each reduction is over two elements, hence one addition: there is no order left for the compiler to choose."""
    for step in tl.static_range(8):
        lanes = tl.reduce(tl.reshape(lanes, (ROWS, 2, 128 >> step)), 1, one_addition)
    return tl.reshape(lanes, (ROWS,))


@triton.jit
def pointers_at(ptr, offsets, ALIGNED: tl.constexpr):
    """Addresses of a block; ALIGNED: base and row length are multiples of 16 bytes, so accesses can be as wide."""
    pointers = ptr + offsets
    if ALIGNED:
        pointers = tl.multiple_of(pointers, (16, 16))
    return pointers


@triton.jit
def load_rows(ptr, offsets, inside, ALIGNED: tl.constexpr):
    """A block in float32; what does not exist is 0."""
    return tl.load(pointers_at(ptr, offsets, ALIGNED), mask=inside, other=0.0).to(tl.float32)


@triton.jit
def load_columns(ptr, columns, H, ALIGNED: tl.constexpr):
    """A weight or a bias, the same for every row."""
    length = H // 8 * 8 if ALIGNED else H
    pointers = ptr + columns
    if ALIGNED:
        pointers = tl.multiple_of(pointers, 16)
    return tl.load(pointers, mask=columns < length, other=0.0).to(tl.float32)[None, :]


@triton.jit
def block_of(rows, start, M, H, WIDTH: tl.constexpr, ALIGNED: tl.constexpr):
    """Offsets of a (rows, WIDTH) block of an (M, H) matrix, which part of it exists, and its columns."""
    columns = start + tl.arange(0, WIDTH)
    # A multiple of 8 in a form that the compiler can see.
    length = H // 8 * 8 if ALIGNED else H
    offsets = rows[:, None].to(tl.int64) * length + columns[None, :]
    return offsets, (rows < M)[:, None] & (columns < length)[None, :], columns


def aligned(*tensors: Tensor | None) -> bool:
    """Whether rows of H elements can be read eight at a time."""
    return all(x is None or (x.data_ptr() % 16 == 0 and x.shape[-1] % 8 == 0) for x in tensors)
