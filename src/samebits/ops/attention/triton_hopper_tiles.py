"""Which tile comes next, and which blocks of keys it sees: what the warps of attention's kernel for Hopper agree on.

Knows no launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from samebits.ops.attention.triton_blocks import key_range

ROWS = gl.constexpr(64)
"""Queries of a group."""
BLOCK = gl.constexpr(64)
"""Keys of a block; decides bits, and is the same for every kernel."""
TOLD = gl.constexpr(7)
"""Numbers of a tile that the warp that loads tells the others: line, first row, first token, lengths, blocks of all."""
OF_PART = gl.constexpr(4)
"""And of each part of the tile: its blocks."""
SLOTS = gl.constexpr(3)
"""Tiles whose numbers are known at a time. A group keeps them until it is done, so that they need no registers."""


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
    """Blocks of keys that COUNT queries from `first` on see, as `key_range` has it; none where there is no query."""
    CAUSAL: gl.constexpr = CONSTANTS.CAUSAL
    WINDOWED: gl.constexpr = CONSTANTS.WINDOWED
    offset = k_length - q_length
    last = offset + gl.minimum(first + COUNT, q_length) - 1
    start, full_start, full_end, end = key_range(offset + first, last, k_length, window, BLOCK, CAUSAL, WINDOWED)
    some = (first + COUNT > 0) & (first < q_length) & (q_length > 0)
    return start, full_start, full_end, gl.where(some, end, start)


@gluon.jit
def tile_at(number, tables, sizes, CONSTANTS: gl.constexpr):
    """A tile by its number, the last one for numbers behind it: (line, first query, first token of the sequence, its
    lengths, the first token of its keys).

    The tiles of a sequence end with its last 64 queries, so that the one which is not full, and begins before the first
    query, is the one with fewest keys. Those with most keys come first among the tiles of `section` lines, whose keys
    and values fit into the cache."""
    q_start_ptr, q_length_ptr, k_start_ptr, k_length_ptr = tables
    lines, heads, tiles, section, _ = sizes
    number = gl.minimum(number, lines * tiles - 1)
    before = number // (section * tiles) * section
    number = number % (section * tiles)
    wide = gl.minimum(section, lines - before)
    line = before + number % wide
    sequence = line // heads
    q_length, k_length = gl.load(q_length_ptr + sequence).to(gl.int32), gl.load(k_length_ptr + sequence).to(gl.int32)
    q_start, k_start = gl.load(q_start_ptr + sequence).to(gl.int32), gl.load(k_start_ptr + sequence).to(gl.int32)
    first = (q_length + (ROWS - 1)) // ROWS * ROWS - (number // wide + 1) * (CONSTANTS.GROUPS * ROWS)
    return line, first, q_start, q_length, k_length, k_start


@gluon.jit
def next_number(counter_ptr):
    """The number of the tile that comes behind all that are taken."""
    return gl.num_programs(0) + gl.atomic_add(counter_ptr, 1, sem="relaxed")


@gluon.jit
def told_at(turn, number, CONSTANTS: gl.constexpr):
    """Where a number of a tile is kept."""
    return turn % SLOTS * (TOLD + OF_PART * CONSTANTS.GROUPS) + number


@gluon.jit
def tell(values, turn, number, numbers, COUNT: gl.constexpr, CONSTANTS: gl.constexpr):
    """So many numbers of a tile, from that one on."""
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    for each in gl.static_range(COUNT):
        place = told_at(turn, number + each, CONSTANTS)
        numbers.index(place).store(gl.full([1], values[each], gl.int32, ONE))


@gluon.jit
def told(turn, number, numbers, CONSTANTS: gl.constexpr):
    """One number of a tile that is published, and not given back by this group."""
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    return gl.max(numbers.index(told_at(turn, number, CONSTANTS)).load(ONE), 0)


@gluon.jit
def published(turn, numbers, number_ready, CONSTANTS: gl.constexpr):
    """The line of the next tile, whose numbers then are there; behind the last line there is no tile."""
    mbarrier.wait(number_ready.index(turn % SLOTS), turn // SLOTS & 1)
    return told(turn, 0, numbers, CONSTANTS)


@gluon.jit
def lengths_of(turn, numbers, CONSTANTS: gl.constexpr):
    """(first row of a tile, first token of its sequence, length of its queries, of its keys)."""
    return (
        told(turn, 1, numbers, CONSTANTS),
        told(turn, 2, numbers, CONSTANTS),
        told(turn, 3, numbers, CONSTANTS),
        told(turn, 4, numbers, CONSTANTS),
    )


@gluon.jit
def walked_by_all(turn, numbers, CONSTANTS: gl.constexpr):
    """The first block of a tile, and the end of them."""
    return told(turn, 5, numbers, CONSTANTS), told(turn, 6, numbers, CONSTANTS)


@gluon.jit
def walked_by(part, turn, numbers, CONSTANTS: gl.constexpr):
    """The blocks of a part of a tile: (start, full_start, full_end, end)."""
    number = TOLD + OF_PART * part
    return (
        told(turn, number, numbers, CONSTANTS),
        told(turn, number + 1, numbers, CONSTANTS),
        told(turn, number + 2, numbers, CONSTANTS),
        told(turn, number + 3, numbers, CONSTANTS),
    )


@gluon.jit
def numbers_shared(CONSTANTS: gl.constexpr):
    """Shared memory for the numbers of tiles."""
    COUNT: gl.constexpr = SLOTS * (TOLD + OF_PART * CONSTANTS.GROUPS)
    return gl.allocate_shared_memory(gl.int32, [COUNT, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def publish_queries(tile, turn, window, numbers, number_ready, number_free, CONSTANTS: gl.constexpr):
    """Tells the groups a tile of queries and the blocks that each part of it walks, once: the range of all is given
    back."""
    mbarrier.wait(number_free.index(turn % SLOTS), turn // SLOTS & 1 ^ 1)
    _, first, _, q_length, k_length, _ = tile
    start, _, _, end = blocks_of(first, CONSTANTS.GROUPS * ROWS, q_length, k_length, window, CONSTANTS)
    tell(tile, turn, 0, numbers, 5, CONSTANTS)
    tell((start, end), turn, 5, numbers, 2, CONSTANTS)
    for part in range(CONSTANTS.GROUPS):
        walked = blocks_of(first + part * ROWS, ROWS, q_length, k_length, window, CONSTANTS)
        tell(walked, turn, TOLD + OF_PART * part, numbers, OF_PART, CONSTANTS)
    mbarrier.arrive(number_ready.index(turn % SLOTS))
    return start, end


@gluon.jit
def publish_end(lines, turn, numbers, number_ready, number_free, CONSTANTS: gl.constexpr):
    """Tells the groups that there is no other tile."""
    mbarrier.wait(number_free.index(turn % SLOTS), turn // SLOTS & 1 ^ 1)
    tell((lines,), turn, 0, numbers, 1, CONSTANTS)
    mbarrier.arrive(number_ready.index(turn % SLOTS))


@gluon.jit
def part_of(group, turn, CONSTANTS: gl.constexpr):
    """Which part of a tile, 64 rows, is a group's. In turns, for under a causal mask some parts have more blocks than
    others, and a group may be some blocks ahead of another."""
    return (group + turn) % CONSTANTS.GROUPS


@gluon.jit
def group_of(part, turn, CONSTANTS: gl.constexpr):
    """Which group has a part of a tile."""
    return (part + CONSTANTS.GROUPS - turn % CONSTANTS.GROUPS) % CONSTANTS.GROUPS


@gluon.jit
def load_blocks(first, last, k_row, column, loaded, memory, barriers, CONSTANTS: gl.constexpr):
    """Begins copies of blocks first..last-1 of keys and values, each once its stage is free."""
    k_described, v_described, k_shared, v_shared = memory
    ready, free = barriers
    for block in range(first, last):
        stage = loaded % CONSTANTS.STAGES
        at = [k_row + block * BLOCK, column]
        mbarrier.wait(free.index(stage), loaded // CONSTANTS.STAGES & 1 ^ 1)
        mbarrier.expect(ready.index(stage), 2 * k_described.block_type.nbytes)
        tma.async_copy_global_to_shared(k_described, at, ready.index(stage), k_shared.index(stage))
        tma.async_copy_global_to_shared(v_described, at, ready.index(stage), v_shared.index(stage))
        loaded += 1
    return loaded


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
