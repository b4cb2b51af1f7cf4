"""The softmax of attention of one query: blocks of keys and values in shared memory, keys down and heads across.

The blocks and order of `attention_forward`, so the same bits. The heads that share a key head are too few to be rows of
the matrix units, and are columns. Threads meet for some blocks at once: scores and weights of blocks do not wait for
each other, the sums alone are chains. Other warps sum the values (triton_decode_values.py). Knows no launch and no
loads."""

from __future__ import annotations

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
from samebits.ops.attention.triton_decode_places import give_back, seen_of, wait_for
from samebits.ops.attention.triton_hopper_tiles import BLOCK
from samebits.ops.attention.triton_merge import level_of


@triton.constexpr_function
def weights_layout(heads: int, step: int) -> gl.DistributedLinearLayout:
    """A step's weights, column head * step + block: a warp has whole blocks, keys 8 apart are in one thread."""
    blocks = [[0, 1 << bit] for bit in range(step.bit_length() - 1)]
    warps = [*blocks, [0, 0], [0, 0]][:2]
    return gl.DistributedLinearLayout(
        [[8, 0], [16, 0], [32, 0], *heads_of_thread(heads, step)], lanes_of(step), warps, [], [64, heads * step]
    )


@triton.constexpr_function
def added_layout(heads: int, step: int) -> gl.DistributedLinearLayout:
    """What a step's blocks add to 8 lanes of each head; every warp has all of it."""
    blocks = [[0, 1 << bit] for bit in range(step.bit_length() - 1)]
    registers = [*blocks, *heads_of_thread(heads, step)]
    return gl.DistributedLinearLayout(registers, lanes_of(step), [[0, 0], [0, 0]], [], [8, heads * step])


@triton.constexpr_function
def heads_of_thread(heads: int, step: int) -> list[list[int]]:
    """As the matrix units have their columns: two side by side in a thread, then every eighth."""
    return [[0, step], *([0, step << bit] for bit in range(3, heads.bit_length() - 1))]


@triton.constexpr_function
def lanes_of(step: int) -> list[list[int]]:
    """Pairs of heads in four threads, and keys as the matrix units have their rows."""
    return [[0, 2 * step], [0, 4 * step], [1, 0], [2, 0], [4, 0]]


@gluon.jit
def joined(values, STEP: gl.constexpr):
    """What each block of a step has as one tensor, its last axes the blocks."""
    if STEP == 1:
        return values[0]
    elif STEP == 2:
        return gl.join(values[0], values[1])
    else:
        return gl.join(gl.join(values[0], values[1]), gl.join(values[2], values[3]))


@gluon.jit
def parted(value, LAYOUT: gl.constexpr, STEP: gl.constexpr):
    """What was joined, block by block; no thread asks another one."""
    if STEP == 1:
        return (gl.convert_layout(value, LAYOUT, assert_trivial=True),)
    elif STEP == 2:
        first, second = gl.split(value)
        return (
            gl.convert_layout(first, LAYOUT, assert_trivial=True),
            gl.convert_layout(second, LAYOUT, assert_trivial=True),
        )
    else:
        left, right = gl.split(value)
        return parted(left, LAYOUT, 2) + parted(right, LAYOUT, 2)


@gluon.jit
def folded(weights, COLUMNS: gl.constexpr):
    """The 64 weights of each column by halves down to 8 lanes."""
    weights = gl.reduce(gl.reshape(weights, (2, 32, COLUMNS)), 0, one_addition)
    weights = gl.reduce(gl.reshape(weights, (2, 16, COLUMNS)), 0, one_addition)
    return gl.reduce(gl.reshape(weights, (2, 8, COLUMNS)), 0, one_addition)


@gluon.jit
def added_by(weights, LANES: gl.constexpr, CONSTANTS: gl.constexpr):
    """What each block of a step adds to the lanes of each head."""
    HEADS: gl.constexpr = CONSTANTS.HEADS
    STEP: gl.constexpr = CONSTANTS.STEP
    flat = gl.reshape(joined(weights, STEP), (BLOCK, HEADS * STEP))
    added = folded(gl.convert_layout(flat, weights_layout(HEADS, STEP)), HEADS * STEP)
    added = gl.convert_layout(added, added_layout(HEADS, STEP))
    if STEP == 4:
        added = gl.reshape(added, (8, HEADS, 2, 2))
    elif STEP == 2:
        added = gl.reshape(added, (8, HEADS, 2))
    return parted(added, LANES, STEP)


@gluon.jit
def total_of(lanes, CONSTANTS: gl.constexpr):
    """Eight lanes by halves to their sum."""
    HEADS: gl.constexpr = CONSTANTS.HEADS
    lanes = gl.reduce(gl.reshape(lanes, (2, 4, HEADS)), 0, one_addition)
    lanes = gl.reduce(gl.reshape(lanes, (2, 2, HEADS)), 0, one_addition)
    return gl.reduce(lanes, 0, one_addition)


@gluon.jit
def scores_of(block, view, q_shared, k_shared, ready, SUMS: gl.constexpr, CONSTANTS: gl.constexpr):
    """Begins the scores of a step's blocks, for which it waits.

    Behind the last block that one once more, which is masked, and behind the last step that one once more, which nobody
    reads: an asynchronous product cannot be conditional."""
    HALVES: gl.constexpr = CONSTANTS.HALVES
    HEADS: gl.constexpr = CONSTANTS.HEADS
    STEP: gl.constexpr = CONSTANTS.STEP
    start, _, _, end, _, _, _ = view
    wait_for(gl.minimum(block - start, (end - start - 1) // STEP * STEP) // STEP, ready, CONSTANTS)
    begun = ()
    for place in gl.static_range(STEP):
        stage = (gl.minimum(block + place, end - 1) - start) % CONSTANTS.STAGES
        scores = gl.zeros((BLOCK, HEADS), gl.float32, SUMS)
        for half in gl.static_range(HALVES):
            q = q_shared.index(half).permute((1, 0))
            scores = warpgroup_mma(k_shared.index(stage * HALVES + half), q, scores, use_acc=half > 0, is_async=True)
        begun += (scores,)
    return begun


@gluon.jit
def masked(scores, block, view, CONSTANTS: gl.constexpr):
    """A step's scores: those of keys that the query does not see become -inf."""
    STEP: gl.constexpr = CONSTANTS.STEP
    _, full_start, full_end, _, _, _, _ = view
    if (block < full_start) | (block + CONSTANTS.STEP > full_end):
        found = ()
        for place in gl.static_range(STEP):
            keys = (block + place) * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(1, scores[place].type.layout))
            kept = seen_of(keys, view, CONSTANTS)[:, None]
            found += (gl.where(kept, scores[place], float("-inf")),)
        scores = found
    return scores


@gluon.jit
def weighed(scores, maximum, c, CONSTANTS: gl.constexpr):
    """A step's weights, what earlier sums shrink by at each of its blocks, and the maximum with them."""
    STEP: gl.constexpr = CONSTANTS.STEP
    COLUMN: gl.constexpr = maximum.type.layout
    largest = parted(gl.max(joined(scores, STEP), 0), COLUMN, STEP)
    weights, shrinks = (), ()
    for place in gl.static_range(STEP):
        raised = gl.maximum(maximum, largest[place])
        level = level_of(raised, c)
        # Exactly 1 where the maximum stays, even if its product with c overflows.
        shrinks += (gl.where(raised == maximum, 1.0, gl.exp2(maximum * c - level)),)
        weights += (gl.exp2(gl.fma(scores[place], c, (0.0 - level)[None, :])),)
        maximum = raised
    return weights, shrinks, maximum


@gluon.jit
def hand_over(turn, weights, shrinks, shared, barriers, CONSTANTS: gl.constexpr):
    """A step's rounded weights, and what sums shrink by, to the warps that sum values."""
    weights_shared, shrinks_shared = shared
    ready, free = barriers
    STEP: gl.constexpr = CONSTANTS.STEP
    mbarrier.wait(free.index(turn % 2), turn // 2 & 1 ^ 1)
    for place in gl.static_range(STEP):
        there = weights_shared[place].index(turn % 2)
        there.store(gl.permute(weights[place].to(there.dtype), (1, 0)))
        shrinks_shared[place].index(turn % 2).store(shrinks[place])
    fence_async_shared()
    gl.thread_barrier()
    mbarrier.arrive(ready.index(turn % 2))


@gluon.jit
def attend(view, q_shared, k_shared, handed, barriers, c, CONSTANTS: gl.constexpr):
    """Blocks start..end-1, of which there are some: (sums of weights, maxima); weights are handed over.

    The scores of a step's blocks are computed beside the softmax of the step before it."""
    HEADS: gl.constexpr = CONSTANTS.HEADS
    STEP: gl.constexpr = CONSTANTS.STEP
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEADS, 16])
    COLUMN: gl.constexpr = gl.SliceLayout(0, SUMS)
    LANES: gl.constexpr = added_layout(HEADS, 1)
    ready, free, handing = barriers
    start, _, _, end, _, _, _ = view
    lanes = gl.zeros((8, HEADS), gl.float32, LANES)
    maximum = gl.full((HEADS,), float("-inf"), gl.float32, COLUMN)
    scores = done(scores_of(start, view, q_shared, k_shared, ready, SUMS, CONSTANTS), STEP)
    give_back(0, free, True, CONSTANTS)
    for block in range(start, end, STEP):
        turn = (block - start) // STEP
        following = scores_of(block + STEP, view, q_shared, k_shared, ready, SUMS, CONSTANTS)
        weights, shrinks, maximum = weighed(masked(scores, block, view, CONSTANTS), maximum, c, CONSTANTS)
        hand_over(turn, weights, shrinks, handed, handing, CONSTANTS)
        added = added_by(weights, LANES, CONSTANTS)
        for place in gl.static_range(STEP):
            # Of a block that there is not, nothing is added.
            thin = gl.convert_layout(shrinks[place], gl.SliceLayout(0, LANES), assert_trivial=True)
            lanes = gl.where(block + place < end, gl.fma(lanes, thin[None, :], added[place]), lanes)
        scores = done(following, STEP)
        give_back(turn + 1, free, block + STEP < end, CONSTANTS)
    return gl.convert_layout(total_of(lanes, CONSTANTS), COLUMN), maximum


@gluon.jit
def done(scores, STEP: gl.constexpr):
    """Waits for a step's scores."""
    if STEP == 1:
        return (warpgroup_mma_wait(0, deps=[scores[0]]),)
    elif STEP == 2:
        return warpgroup_mma_wait(0, deps=[scores[0], scores[1]])
    else:
        return warpgroup_mma_wait(0, deps=[scores[0], scores[1], scores[2], scores[3]])
