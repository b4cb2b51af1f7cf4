"""Rows of a norm that stay in registers from the first pass over them to the last, and the launches by which they do.

Knows no norm. A kept row is STEPS blocks of 256 columns, all of whose loads are under way together; a thread has the
same lanes of every block, so that each lane's terms are added by one thread in the order of their columns."""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from samebits.ops._triton.forced import forced_launch
from samebits.ops._triton.rows import RowLaunch, block_of, pointers_at
from samebits.ops._triton.sizes import cdiv, next_power_of_2

# Decides bits: lane l adds the terms l, l + 256, l + 512, ... Part of the order.
LANES: Final = 256

# The rest decides speed only. A thread has at most 64 columns: with some 100 registers then, 168 where two tensors are
# kept, 12 to 20 warps are on a multiprocessor, and their rows of 16-bit numbers are 64 kB or more, twice what hides the
# memory's latency.
COLUMNS: Final = 64
FEW_COLUMNS: Final = 16
"""Where rows do not fill the device: the fewer columns a thread has, the sooner its row is done."""
LEAST_COLUMNS: Final = 32
"""A warp has several short rows: what it does once a row would outweigh its columns."""
FILLING_WARPS: Final = 132 * 8
"""On the multiprocessors of an H200: with fewer, all rows are under way at once however many warps each has, and it is
the latency of one row that counts."""
LONGEST_KEPT: Final = 8192
"""64 columns of four warps; longer rows would be 32 blocks and more, each with code of its own."""
LONGER: Final = RowLaunch(rows=1, columns=2048, warps=4)
WARPS: Final = 4
MOST_WARPS: Final = 8
WARP: Final = 32


def launch_for(width: int, rows: int) -> RowLaunch:
    """The forced launch, or the one for so many rows of this length: kept by as few warps a row as hold it, for then
    loads are wide and little is handed from warp to warp; where there are few rows, by as many as help."""
    forced = forced_launch(RowLaunch)
    if forced is not None or width > LONGEST_KEPT:
        return forced or LONGER
    blocks = cdiv(width, LANES)
    columns, kept = next_power_of_2(blocks) * LANES, blocks * LANES
    warps = next_power_of_2(cdiv(kept, COLUMNS * WARP))
    if rows * warps < FILLING_WARPS:
        warps = min(MOST_WARPS, next_power_of_2(cdiv(kept, FEW_COLUMNS * WARP)))
        return RowLaunch(rows=1, columns=columns, warps=warps)
    several = max(1, LEAST_COLUMNS * WARP // kept)
    return RowLaunch(rows=WARPS // warps * several, columns=columns, warps=WARPS)


def steps_of(launch: RowLaunch, width: int) -> tuple[int, bool]:
    """What a launch says to a kernel: the blocks of a row that is kept, or of a step along one that is not."""
    kept = width <= launch.columns
    return cdiv(width, LANES) if kept else max(1, launch.columns // LANES), kept


@triton.jit
def block_at(rows, start, M, H, FULL: tl.constexpr, ALIGNED: tl.constexpr):
    """`block_of` 256 columns. FULL: they all exist, as they do in every block of a kept row but its last."""
    offsets, inside, columns = block_of(rows, start, M, H, 256, ALIGNED)
    if FULL:
        inside = (rows < M)[:, None]
    return offsets, inside, columns


@triton.jit
def load_shared(ptr, columns, inside, ROWS: tl.constexpr, ALIGNED: tl.constexpr):
    """256 columns of a weight or a bias for each of the rows, in float32: read by the threads that have those of x, so
    that none is handed on; what does not exist is 0."""
    pointers = pointers_at(ptr, tl.broadcast_to(columns[None, :], (ROWS, 256)), ALIGNED)
    return tl.load(pointers, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def only_inside(new, old, inside, FULL: tl.constexpr):
    """What a lane holds after a block: a term that does not exist is skipped. Rows that do not exist may hold
    anything."""
    return new if FULL else tl.where(inside, new, old)


@triton.jit
def store_blocks(ptr, blocks, rows, start, M, H, STEPS: tl.constexpr, FULL: tl.constexpr, ALIGNED: tl.constexpr):
    """Blocks of 256 columns in the dtype that they are stored in; the first FULL of them exist. All that they are made
    of has been loaded before: a load behind a store would wait for no reason, and each of them in turn."""
    for step in tl.static_range(STEPS):
        offsets, inside, _ = block_at(rows, start + step * 256, M, H, step < FULL, ALIGNED)
        tl.store(pointers_at(ptr, offsets, ALIGNED), blocks[step].to(ptr.dtype.element_ty), mask=inside)
