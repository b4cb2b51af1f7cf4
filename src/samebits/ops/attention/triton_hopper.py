"""Launches of attention's forward pass for Hopper, by Gluon: which calls it takes, tiles, descriptors, the grid.

Decides speed alone: triton_kernel.py chooses between this and the kernel by Triton, whose bits are the same. Tiles in
which something is not finite are marked, and done again by a kernel that knows which keys a row does not see. Nothing
is filled but marks and the rows of no sequence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from samebits.ops._triton.device import missing, multiprocessors, on_device
from samebits.ops._triton.launch import run
from samebits.ops._triton.sizes import cdiv
from samebits.ops.attention.forms import BLOCK_KEYS, SPLIT_KEYS, Rule, Sequences
from samebits.ops.attention.triton_blocks import describable
from samebits.ops.attention.triton_hopper_forward import GROUPS, attention_hopper
from samebits.ops.attention.triton_marked import MARKS
from samebits.ops.attention.triton_marked_forward import attention_forward_marked
from samebits.ops.attention.triton_uncovered import fill_uncovered

HEADS = (64, 128)
ROWS = 64
"""Of a group of warps, of a mark, and of a block."""
STAGES = {64: 5, 128: 4}
"""Blocks that are walked, on their way into shared memory, by the size of a head."""
FEWEST_QUERIES, FEWEST_TILES = 192, 192
"""Of the longest sequence, and of all: from these on this kernel is faster than the one by Triton."""
CACHED = 2**24
"""Bytes of keys and values that programs work on at a time: a third of the second cache."""
TILES_OF_A_SECTION = 4
"""A multiprocessor, where what fits into the cache is too little for all of them."""
_ELEMENTS = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float32: gl.float32}


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of every line, a line being a head of a sequence."""

    lines: int
    of_line: int
    section: int
    """Lines whose tiles are done together, those with most keys first: as many as fit into the cache, if that keeps all
    multiprocessors busy to the end."""
    marks: Tensor
    """One for every 64 rows, and behind them the number of the tile that comes next."""

    @classmethod
    def of(cls, x_THD: Tensor, lines: int, longest: int, groups: int, read: int) -> Tiles:
        """`groups` of 64 rows a tile; `read`: elements of 16 bits that a line reads."""
        of_line, programs = cdiv(longest, groups * ROWS), multiprocessors(x_THD.device)
        section = max(1, CACHED // max(1, 2 * read))
        # A tile with most keys that begins last would be waited for by all.
        if 2 * section * of_line < 3 * programs:
            section = cdiv(TILES_OF_A_SECTION * programs, of_line)
        marks = torch.zeros(lines * of_line * groups + 1, dtype=torch.int32, device=x_THD.device)
        return cls(lines, of_line, min(lines, section), marks)

    @property
    def programs(self) -> int:
        return min(self.lines * self.of_line, multiprocessors(self.marks.device))

    @property
    def count(self) -> int:
        """Of marks."""
        return self.marks.shape[0] - 1


def takes(q: Tensor, k: Tensor, v: Tensor, sequences: Sequences, rule: Rule) -> bool:
    """Whether this kernel can do what is asked."""
    return (
        q.is_cuda
        and missing(q.device) is None
        and q.dtype in (torch.bfloat16, torch.float16)
        and q.shape[2] in HEADS
        and sequences.pages is None
        and rule.softcap == 0
        and describable(q, k, v)
    )


def pays(q: Tensor, sequences: Sequences) -> bool:
    """Whether there are so many queries that this kernel is faster than the one by Triton."""
    longest = sequences.longest_query
    tiles = sequences.count * q.shape[1] * cdiv(longest, GROUPS.value * ROWS)
    return q.shape[2] in HEADS and longest >= FEWEST_QUERIES and tiles >= FEWEST_TILES


def forward(q: Tensor, k: Tensor, v: Tensor, sequences: Sequences, rule: Rule) -> tuple[Tensor, Tensor]:
    """(out, lse in powers of two): q (Tq, Hq, D), k and v (Tk, Hk, D); rows of no sequence are 0 and +inf."""
    (tokens, heads, head), group = q.shape, q.shape[1] // k.shape[1]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(tokens, heads, dtype=torch.float32, device=q.device)
    read = 2 * sequences.longest_key * head // group
    tiles = Tiles.of(q, sequences.count * heads, sequences.longest_query, GROUPS.value, read)
    flags = {"HEAD": head, "GROUP": group, "CAUSAL": rule.causal, "WINDOWED": rule.window > 0}
    tables = (sequences.q_start, sequences.q_length, sequences.k_start, sequences.k_length)
    with on_device(q):
        fill_uncovered(out, lse, sequences.q_start, sequences.q_length, float("inf"))
        run(
            attention_hopper,
            tiles.programs,
            (
                *(described(q), described(k), described(v)),
                *(out, lse, tiles.marks, tiles.marks[-1:]),
                *tables,
                *(tiles.lines, heads, tiles.of_line, tiles.section, rule.window, rule.exponent_factor),
            ),
            warps=4,
            stages=1,
            **flags,
            SEVERAL=sequences.longest_key > SPLIT_KEYS,
            STAGES=STAGES[head],
            SPLIT=SPLIT_KEYS // BLOCK_KEYS,
        )
        run(
            attention_forward_marked,
            cdiv(tiles.count, MARKS.value),
            (
                *(q, k, v, tiles.marks, out, lse, *tables),
                *(q.stride(0), k.stride(0), v.stride(0), heads, tiles.count, GROUPS.value * tiles.of_line),
                *(rule.window, rule.exponent_factor),
            ),
            warps=4,
            stages=1,
            **flags,
            SPLIT=SPLIT_KEYS // BLOCK_KEYS,
        )
    return out, lse


def described(x_THD: Tensor) -> TensorDescriptor:
    """64 rows of a head at a time."""
    tokens, heads, head = x_THD.shape
    sizes, strides = [tokens, heads * head], [x_THD.stride(0), 1]
    return TensorDescriptor(x_THD, sizes, strides, [ROWS, head], layout_of(ROWS, head, x_THD.dtype))


@cache
def layout_of(rows: int, columns: int, dtype: torch.dtype) -> gl.NVMMASharedLayout:
    """Of a block in shared memory, as products read it."""
    return gl.NVMMASharedLayout.get_default_for([rows, columns], _ELEMENTS[dtype])
