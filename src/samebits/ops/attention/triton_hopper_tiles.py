"""Which tile comes next, and which blocks of keys it sees: what the warps of attention's kernel for Hopper agree on.

Knows no launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from samebits.ops.attention.triton_blocks import key_range

ROWS = gl.constexpr(64)
"""Queries of a group."""
BLOCK = gl.constexpr(64)
"""Keys of a block; decides bits, and is the same for every kernel."""


@dataclass(frozen=True, slots=True)
class Constants:
    """What a compiled kernel is made for."""

    HEAD: int
    GROUP: int
    """Query heads of a key head."""
    CAUSAL: bool
    WINDOWED: bool
    SEVERAL: bool
    """There may be more than SPLIT blocks of keys."""
    STAGES: int
    """Blocks of keys and of values on their way."""
    SPLIT: int
    GROUPS: int
    """Groups of warps that compute; their rows are a tile."""


@triton.constexpr_function
def constants(*values: Any) -> Constants:
    return Constants(*values)


@gluon.jit
def blocks_of(first, COUNT: gl.constexpr, q_length, k_length, window, CONSTANTS: gl.constexpr):
    """Blocks of keys that COUNT queries from `first` on see, as `key_range` has it; none where no query is left."""
    CAUSAL: gl.constexpr = CONSTANTS.CAUSAL
    WINDOWED: gl.constexpr = CONSTANTS.WINDOWED
    offset = k_length - q_length
    last = offset + gl.minimum(first + COUNT, q_length) - 1
    start, full_start, full_end, end = key_range(offset + first, last, k_length, window, BLOCK, CAUSAL, WINDOWED)
    return start, full_start, full_end, gl.where(first < q_length, end, start)


@gluon.jit
def tile_at(number, tables, sizes, CONSTANTS: gl.constexpr):
    """A tile by its number: (line, sequence, head, first query, lengths, range of blocks).

    Tiles with most keys come first among those of `section` lines, whose keys and values fit into the cache."""
    _, q_length_ptr, _, k_length_ptr = tables
    lines, heads, tiles, section, window = sizes
    before = number // (section * tiles) * section
    number = number % (section * tiles)
    wide = gl.minimum(section, lines - before)
    line = before + number % wide
    first = (tiles - 1 - number // wide) * (CONSTANTS.GROUPS * ROWS)
    sequence, head = line // heads, line % heads
    q_length, k_length = gl.load(q_length_ptr + sequence).to(gl.int32), gl.load(k_length_ptr + sequence).to(gl.int32)
    start, _, _, end = blocks_of(first, CONSTANTS.GROUPS * ROWS, q_length, k_length, window, CONSTANTS)
    return line, sequence, head, first, q_length, k_length, start, end


@gluon.jit
def publish(number, turn, numbers, number_ready, number_free):
    """Tells the groups the number of the next tile; two numbers are on their way at most."""
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    slot = turn % 2
    mbarrier.wait(number_free.index(slot), turn // 2 & 1 ^ 1)
    numbers.index(slot).store(gl.full([1], number, gl.int32, ONE))
    mbarrier.arrive(number_ready.index(slot))


@gluon.jit
def published(turn, numbers, number_ready, number_free):
    """The number of the next tile."""
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    slot = turn % 2
    mbarrier.wait(number_ready.index(slot), turn // 2 & 1)
    number = gl.max(numbers.index(slot).load(ONE), 0)
    mbarrier.arrive(number_free.index(slot))
    return number


@gluon.jit
def pass_by(first, last, loaded, ready, free, CONSTANTS: gl.constexpr):
    """Blocks that another group alone has queries for."""
    for _ in range(first, last):
        mbarrier.wait(ready.index(loaded % CONSTANTS.STAGES), loaded // CONSTANTS.STAGES & 1)
        mbarrier.arrive(free.index(loaded % CONSTANTS.STAGES))
        loaded += 1
    return loaded


@gluon.jit
def barriers_of(NUMBER: gl.constexpr, COUNT: gl.constexpr):
    """So many barriers, each of which that many arrive at."""
    barriers = gl.allocate_shared_memory(gl.int64, [NUMBER, 1], mbarrier.MBarrierLayout())
    for number in gl.static_range(NUMBER):
        mbarrier.init(barriers.index(number), count=COUNT)
    return barriers
