"""Which query, key head and split a program of attention of one query has, and where its keys lie.

Knows no launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from samebits.ops.attention.triton_blocks import key_range
from samebits.ops.attention.triton_forward import within
from samebits.ops.attention.triton_hopper_tiles import BLOCK

WIDE = gl.constexpr(64)
"""Columns of a head that lie side by side in shared memory; a head of 128 has two such halves."""


@dataclass(frozen=True, slots=True)
class Constants:
    """What a compiled kernel is made for."""

    HALVES: int
    """Of a head, 64 columns each."""
    OWN: int
    """Those whose values a program sums: all, or one."""
    PACK: int
    """Query heads of a key head."""
    HEADS: int
    """As many, rounded up to columns of the matrix units."""
    PAGE: int
    """Keys that lie side by side in memory, at most a block's."""
    PAGE_SIZE: int
    """0 without pages."""
    STAGES: int
    """Blocks of keys on their way, and as many of values."""
    STEP: int
    """Blocks for which threads meet at once; no more than stages."""
    TURNS: int
    """Steps of which blocks may be on their way, rounded up: as many barriers tell them apart."""
    SPLIT: int
    """Blocks of a split."""
    ALONE: bool
    """Each split has a program of its own, which leaves its state."""
    CAUSAL: bool
    WINDOWED: bool
    WAITS: bool
    """A kernel before may still run: each sequence has one query, the last key of which it writes, and whose position
    is told in the place of lengths."""


@triton.constexpr_function
def constants(*values: Any) -> Constants:
    return Constants(*values)


@gluon.jit
def place_of(tables, sizes, CONSTANTS: gl.constexpr):
    """A program's place and view; behind the first `attending` programs there is nothing to attend to.

    The place: the row of its query in memory, its sequence and key head, the row of its first key, its split, which
    part of the head's columns it sums, and whether it has anything to store. The view: its blocks (start, those that
    are seen whole from and to, end), the position of its query, the keys of its sequence, the window."""
    positions_ptr, q_start_ptr, q_length_ptr, k_start_ptr, k_length_ptr = tables
    attending, key_heads, longest_query, splits, window = sizes
    number = gl.minimum(gl.program_id(0), attending - 1)
    PARTS: gl.constexpr = CONSTANTS.HALVES // CONSTANTS.OWN
    part, line = number % PARTS, number // PARTS
    split, line = line % splits, line // splits
    key_head, line = line % key_heads, line // key_heads
    query, sequence = line % longest_query, line // longest_query
    if CONSTANTS.WAITS:
        q_length, k_length = 1, gl.load(positions_ptr + sequence).to(gl.int32) + 1
        row = sequence.to(gl.int64)
    else:
        q_length = gl.load(q_length_ptr + sequence).to(gl.int32)
        k_length = gl.load(k_length_ptr + sequence).to(gl.int32)
        row = gl.load(q_start_ptr + sequence).to(gl.int64) + query
    k_row = 0
    if CONSTANTS.PAGE_SIZE == 0:
        k_row = gl.load(k_start_ptr + sequence).to(gl.int32)
    CAUSAL: gl.constexpr = CONSTANTS.CAUSAL
    WINDOWED: gl.constexpr = CONSTANTS.WINDOWED
    position = k_length - q_length + query
    start, full_start, full_end, end = key_range(position, position, k_length, window, BLOCK, CAUSAL, WINDOWED)
    covered = (query < q_length) & (gl.program_id(0) < attending)
    if CONSTANTS.ALONE:
        SPLIT: gl.constexpr = CONSTANTS.SPLIT
        # What no split of the sequence has is nobody's state.
        covered = covered & (split * (SPLIT * BLOCK) < k_length)
        start, full_start = within(start, split, SPLIT), within(full_start, split, SPLIT)
        full_end, end = within(full_end, split, SPLIT), within(end, split, SPLIT)
    end = gl.where(covered, end, start)
    view = (start, full_start, full_end, end, position, k_length, window)
    return (row, sequence, key_head, k_row, split, part, covered), view


@gluon.jit
def rows_of(block, pages_ptr, k_row, k_length, CONSTANTS: gl.constexpr):
    """Where in memory the pages of a block begin; behind the last key, the page of that key once more."""
    LANES: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    PAGE: gl.constexpr = CONSTANTS.PAGE
    PAGE_SIZE: gl.constexpr = CONSTANTS.PAGE_SIZE
    keys = block * BLOCK + gl.arange(0, BLOCK // PAGE, LANES) * PAGE
    if PAGE_SIZE == 0:
        return k_row + keys
    else:
        keys = gl.minimum(keys, gl.maximum(k_length - 1, 0) // PAGE * PAGE)
        return gl.load(pages_ptr + keys // PAGE_SIZE, mask=keys < k_length, other=0) * PAGE_SIZE + keys % PAGE_SIZE


@gluon.jit
def wait_for(turn, barriers, CONSTANTS: gl.constexpr):
    """Waits for a step: for its blocks, or until they are read."""
    mbarrier.wait(barriers.index(turn % CONSTANTS.TURNS), turn // CONSTANTS.TURNS & 1)


@gluon.jit
def give_back(turn, free, given, CONSTANTS: gl.constexpr):
    """A step's blocks, which have been read."""
    mbarrier.arrive(free.index(turn % CONSTANTS.TURNS), pred=given)


@gluon.jit
def seen_of(keys, view, CONSTANTS: gl.constexpr):
    """Whether the query sees a key, of those that this program has."""
    _, _, _, end, position, k_length, window = view
    inside = keys < gl.minimum(k_length, end * BLOCK)
    if CONSTANTS.CAUSAL:
        inside = inside & (keys <= position)
    if CONSTANTS.WINDOWED:
        inside = inside & (keys > position - window)
        if not CONSTANTS.CAUSAL:
            inside = inside & (keys < position + window)
    return inside
