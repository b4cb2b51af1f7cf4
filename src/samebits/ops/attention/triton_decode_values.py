"""The sums of values of attention of one query: one chain a split, block after block, keys down and heads across.

Weights, and what sums shrink by, come from the warps that compute them (triton_decode_softmax.py), some blocks at a
time: while those are at the next ones, these sum. Knows no launch and no loads."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from samebits.ops.attention.triton_decode_places import WIDE, give_back, seen_of, wait_for
from samebits.ops.attention.triton_hopper_tiles import BLOCK


@gluon.jit
def values_of(weights, v_shared, stage, left, right, CONSTANTS: gl.constexpr):
    """Begins to add one block's values to the sums of both halves."""
    OWN: gl.constexpr = CONSTANTS.OWN
    left = warpgroup_mma(v_shared.index(stage * OWN).permute((1, 0)), weights, left, is_async=True)
    if OWN == 2:
        right = warpgroup_mma(v_shared.index(stage * OWN + 1).permute((1, 0)), weights, right, is_async=True)
    return left, right


@gluon.jit
def settle(block, stage, v_shared, view, CONSTANTS: gl.constexpr):
    """Values that the query does not see, which may be whatever earlier requests left there, become 0.

    All heads are of one query: so what is not finite reaches none that does not see it."""
    OWN: gl.constexpr = CONSTANTS.OWN
    LANES: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    keys = block * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(1, LANES))
    kept = seen_of(keys, view, CONSTANTS)
    for half in gl.static_range(OWN):
        values = v_shared.index(stage * OWN + half).load(LANES)
        v_shared.index(stage * OWN + half).store(gl.where(kept[:, None], values, gl.zeros_like(values)))
    fence_async_shared()
    gl.thread_barrier()


@gluon.jit
def sum_values(view, v_shared, handed, barriers, CONSTANTS: gl.constexpr):
    """Blocks start..end-1, of which there are some: sums of values by halves."""
    HEADS: gl.constexpr = CONSTANTS.HEADS
    STEP: gl.constexpr = CONSTANTS.STEP
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEADS, 16])
    weights_shared, shrinks_shared = handed
    ready, free, handing = barriers
    handed_over, taken = handing
    start, full_start, full_end, end, _, _, _ = view
    left = gl.zeros((WIDE, HEADS), gl.float32, SUMS)
    right = gl.zeros((WIDE, HEADS), gl.float32, SUMS)
    for block in range(start, end, STEP):
        turn = (block - start) // STEP
        wait_for(turn, ready, CONSTANTS)
        mbarrier.wait(handed_over.index(turn % 2), turn // 2 & 1)
        for place in gl.static_range(STEP):
            here = block + place
            if here < end:
                stage = (here - start) % CONSTANTS.STAGES
                if (here < full_start) | (here >= full_end):
                    settle(here, stage, v_shared, view, CONSTANTS)
                shrink = shrinks_shared[place].index(turn % 2).load(gl.SliceLayout(0, SUMS))
                left, right = left * shrink[None, :], right * shrink[None, :]
                rounded = weights_shared[place].index(turn % 2).permute((1, 0))
                left, right = values_of(rounded, v_shared, stage, left, right, CONSTANTS)
                left, right = warpgroup_mma_wait(0, deps=[left, right])
        give_back(turn, free, True, CONSTANTS)
        mbarrier.arrive(taken.index(turn % 2))
    return left, right
