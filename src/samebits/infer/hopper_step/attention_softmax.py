"""The softmax of attention of one query: blocks of keys and values in shared memory, keys down and heads across.

The blocks and order of `attention_forward`, so the same bits. The heads that share a key head are too few to be rows of
the matrix units, and are columns. Knows no launch and no loads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from samebits.ops._triton.rows import one_addition
from samebits.ops.attention.triton_hopper_tiles import BLOCK

WIDE = gl.constexpr(64)
"""Columns of a head that lie side by side in shared memory; a head of 128 has two such halves."""


@dataclass(frozen=True, slots=True)
class Constants:
    """What a compiled kernel is made for."""

    HALVES: int
    """Of a head, 64 columns each."""
    PACK: int
    """Query heads of a key head."""
    HEADS: int
    """As many, rounded up to columns of the matrix units."""
    PAGE: int
    """Keys that lie side by side in memory, at most a block's."""
    PAGE_SIZE: int
    STAGES: int
    """Blocks of keys and of values on their way."""
    SPLIT: int
    """Blocks of a split."""
    ALONE: bool
    """Each split has a program of its own, which leaves its state."""


@triton.constexpr_function
def constants(*values: Any) -> Constants:
    return Constants(*values)


@triton.constexpr_function
def lanes_layout(heads: int) -> gl.DistributedLinearLayout:
    """Keys 8 apart in one thread, so that weights are folded without an exchange; 8 keys by 4 heads a warp."""
    further = [[0, 4 << bit] for bit in range(heads.bit_length() - 3)]
    warps, rest = [*further, [0, 0], [0, 0]][:2], further[2:]
    return gl.DistributedLinearLayout(
        [[8, 0], [16, 0], [32, 0], *rest], [[1, 0], [2, 0], [4, 0], [0, 1], [0, 2]], warps, [], [64, heads]
    )


@gluon.jit
def folded(weights, CONSTANTS: gl.constexpr):
    """The 64 weights of each head by halves down to 8 lanes."""
    HEADS: gl.constexpr = CONSTANTS.HEADS
    weights = gl.reduce(gl.reshape(weights, (2, 32, HEADS)), 0, one_addition)
    weights = gl.reduce(gl.reshape(weights, (2, 16, HEADS)), 0, one_addition)
    return gl.reduce(gl.reshape(weights, (2, 8, HEADS)), 0, one_addition)


@gluon.jit
def total_of(lanes, CONSTANTS: gl.constexpr):
    """Eight lanes by halves to their sum."""
    HEADS: gl.constexpr = CONSTANTS.HEADS
    lanes = gl.reduce(gl.reshape(lanes, (2, 4, HEADS)), 0, one_addition)
    lanes = gl.reduce(gl.reshape(lanes, (2, 2, HEADS)), 0, one_addition)
    return gl.reduce(lanes, 0, one_addition)


@gluon.jit
def level_of(maximum, c):
    return gl.where(maximum == float("-inf"), 0.0, maximum) * c


@gluon.jit
def arrived(block, number, held, v_shared, ready, CONSTANTS: gl.constexpr):
    """Waits for one block of keys and values."""
    stage = number % CONSTANTS.STAGES
    mbarrier.wait(ready.index(stage), number // CONSTANTS.STAGES & 1)
    if block * BLOCK + BLOCK - 1 > held:
        settle(block, stage, v_shared, held, CONSTANTS)


@gluon.jit
def scores_of(number, q_shared, k_shared, SUMS: gl.constexpr, CONSTANTS: gl.constexpr):
    """Begins one block's scores."""
    HALVES: gl.constexpr = CONSTANTS.HALVES
    HEADS: gl.constexpr = CONSTANTS.HEADS
    stage = number % CONSTANTS.STAGES
    scores = gl.zeros((BLOCK, HEADS), gl.float32, SUMS)
    for half in gl.static_range(HALVES):
        q = q_shared.index(half).permute((1, 0))
        scores = warpgroup_mma(k_shared.index(stage * HALVES + half), q, scores, use_acc=half > 0, is_async=True)
    return scores


@gluon.jit
def values_of(weights, v_shared, stage, left, right, CONSTANTS: gl.constexpr):
    """Begins to add one block's values to the sums of both halves."""
    HALVES: gl.constexpr = CONSTANTS.HALVES
    left = warpgroup_mma(v_shared.index(stage * HALVES).permute((1, 0)), weights, left, is_async=True)
    if HALVES == 2:
        right = warpgroup_mma(v_shared.index(stage * HALVES + 1).permute((1, 0)), weights, right, is_async=True)
    return left, right


@gluon.jit
def settle(block, stage, v_shared, held, CONSTANTS: gl.constexpr):
    """Values behind the last key, which may be whatever earlier requests left there, become 0."""
    HALVES: gl.constexpr = CONSTANTS.HALVES
    LANES: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    keys = block * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(1, LANES))
    for half in gl.static_range(HALVES):
        values = v_shared.index(stage * HALVES + half).load(LANES)
        kept = gl.where((keys <= held)[:, None], values, gl.zeros_like(values))
        v_shared.index(stage * HALVES + half).store(kept)
    fence_async_shared()
    gl.thread_barrier()


@gluon.jit
def masked(scores, block, held):
    keys = block * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(1, scores.type.layout))
    return gl.where((keys <= held)[:, None], scores, float("-inf"))


@gluon.jit
def attend(start, end, held, q_shared, shared, weights_shared, barriers, c, CONSTANTS: gl.constexpr):
    """Blocks start..end-1, of which there are some: (sums of values by halves, sums of weights, maxima).

    A block's scores are computed beside the softmax of the block before it."""
    HEADS: gl.constexpr = CONSTANTS.HEADS
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEADS, 16])
    COLUMN: gl.constexpr = gl.SliceLayout(0, SUMS)
    LANES: gl.constexpr = lanes_layout(HEADS)
    k_shared, v_shared = shared
    ready, free = barriers
    left = gl.zeros((WIDE, HEADS), gl.float32, SUMS)
    right = gl.zeros((WIDE, HEADS), gl.float32, SUMS)
    lanes = folded(gl.zeros((BLOCK, HEADS), gl.float32, LANES), CONSTANTS)
    maximum = gl.full((HEADS,), float("-inf"), gl.float32, COLUMN)
    arrived(start, 0, held, v_shared, ready, CONSTANTS)
    scores = warpgroup_mma_wait(0, deps=[scores_of(0, q_shared, k_shared, SUMS, CONSTANTS)])
    for block in range(start, end):
        number = block - start
        stage = number % CONSTANTS.STAGES
        if block * BLOCK + BLOCK - 1 > held:
            scores = masked(scores, block, held)
        # Of the last block once more, which nobody reads: an asynchronous product cannot be conditional.
        if block + 1 < end:
            arrived(block + 1, number + 1, held, v_shared, ready, CONSTANTS)
        following = scores_of(gl.minimum(block + 1, end - 1) - start, q_shared, k_shared, SUMS, CONSTANTS)
        raised = gl.maximum(maximum, gl.max(scores, 0))
        level = level_of(raised, c)
        # Exactly 1 where the maximum stays, even if its product with c overflows.
        shrink = gl.where(raised == maximum, 1.0, gl.exp2(maximum * c - level))
        maximum = raised
        weights = gl.exp2(gl.fma(scores, c, (0.0 - level)[None, :]))
        rounded = weights_shared.index(number % 2)
        rounded.store(gl.permute(weights.to(v_shared.dtype), (1, 0)))
        fence_async_shared()
        gl.thread_barrier()
        left, right = left * shrink[None, :], right * shrink[None, :]
        left, right = values_of(rounded.permute((1, 0)), v_shared, stage, left, right, CONSTANTS)
        added = folded(gl.convert_layout(weights, LANES), CONSTANTS)
        thin = gl.convert_layout(shrink, gl.SliceLayout(0, lanes.type.layout))
        lanes = gl.fma(lanes, thin[None, :], added)
        left, right, scores = warpgroup_mma_wait(0, deps=[left, right, following])
        mbarrier.arrive(free.index(stage))
    return left, right, gl.convert_layout(total_of(lanes, CONSTANTS), COLUMN), maximum


@gluon.jit
def finished(sums, total):
    """As triton_merge.py has it, heads across: the output before it is rounded."""
    # A sum that underflowed to -0 becomes +0, whether or not zeros of unseen keys were added to it.
    scaled = gl.fma(sums, gl.div_rn(1.0, total)[None, :], 0.0)
    return gl.where((total == 0.0)[None, :], 0.0, scaled)
