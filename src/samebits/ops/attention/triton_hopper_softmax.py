"""The softmax of attention's kernel for Hopper: one group's 64 queries against blocks of 64 keys in shared memory.

The scores of a block are computed beside the values of the one before it; splits are merged in registers. Knows no
launch and no loads: `load` in triton_hopper_forward.py fills the memory."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from samebits.ops._triton.rows import one_addition
from samebits.ops.attention.triton_blocks import seen
from samebits.ops.attention.triton_hopper_rescale import rescaled
from samebits.ops.attention.triton_hopper_tiles import BLOCK, ROWS
from samebits.ops.attention.triton_merge import merged


@gluon.jit
def folded(weights):
    """The 64 weights of a row by halves down to 8 lanes; all of a lane's are held by one thread."""
    weights = gl.reduce(gl.reshape(weights, (ROWS, 2, 32)), 1, one_addition)
    weights = gl.reduce(gl.reshape(weights, (ROWS, 2, 16)), 1, one_addition)
    return gl.reduce(gl.reshape(weights, (ROWS, 2, 8)), 1, one_addition)


@gluon.jit
def larger(left, right):
    return gl.maximum(left, right)


@gluon.jit
def largest_of(scores, ROW: gl.constexpr):
    """By halves, too: what does not wait for each other is quicker."""
    scores = gl.reduce(gl.reshape(scores, (ROWS, 2, 32)), 1, larger)
    scores = gl.reduce(gl.reshape(scores, (ROWS, 2, 16)), 1, larger)
    scores = gl.reduce(gl.reshape(scores, (ROWS, 2, 8)), 1, larger)
    return gl.convert_layout(gl.max(scores, 1), ROW, assert_trivial=True)


@gluon.jit
def total_of(lanes, ROW: gl.constexpr):
    """Eight lanes by halves to their sum."""
    lanes = gl.reduce(gl.reshape(lanes, (ROWS, 2, 4)), 1, one_addition)
    lanes = gl.reduce(gl.reshape(lanes, (ROWS, 2, 2)), 1, one_addition)
    return gl.convert_layout(gl.reduce(lanes, 1, one_addition), ROW)


@gluon.jit
def raised_by(scores, maximum, c):
    """The maximum with one block's scores, its level, and what earlier sums shrink by."""
    ROW: gl.constexpr = maximum.type.layout
    raised = gl.maximum(maximum, largest_of(scores, ROW))
    level = gl.where(raised == float("-inf"), 0.0, raised) * c
    # Exactly 1 where the maximum stays, even if its product with c overflows.
    return raised, level, gl.where(raised == maximum, 1.0, gl.exp2(maximum * c - level))


@gluon.jit
def weigh(scores, lanes, level, shrink, c):
    """One block's weights, and the sums of weights with it."""
    weights = gl.exp2(gl.fma(scores, c, (0.0 - level)[:, None]))
    added = gl.convert_layout(folded(weights), lanes.type.layout, assert_trivial=True)
    thin = gl.convert_layout(shrink, gl.SliceLayout(1, lanes.type.layout), assert_trivial=True)
    return weights, gl.fma(lanes, thin[:, None], added)


@gluon.jit
def scores_of(q_shared, k_shared, SCORES: gl.constexpr):
    """Begins one block's scores."""
    nothing = gl.zeros((ROWS, BLOCK), gl.float32, SCORES)
    return warpgroup_mma(q_shared, k_shared.permute((1, 0)), nothing, use_acc=False, is_async=True)


@gluon.jit
def masked(scores, block, view, CONSTANTS: gl.constexpr):
    """Scores of keys that a row does not see become -inf; blocks between the edges are seen whole."""
    positions, k_length, window, full_start, full_end = view
    CAUSAL: gl.constexpr = CONSTANTS.CAUSAL
    WINDOWED: gl.constexpr = CONSTANTS.WINDOWED
    if (block < full_start) | (block >= full_end):
        keys = block * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(0, scores.type.layout))
        scores = gl.where(seen(positions, keys, k_length, window, CAUSAL, WINDOWED), scores, float("-inf"))
    return scores


@gluon.jit
def next_block(
    block, loaded, state, q_shared, shared, barriers, view, c, RESCALED: gl.constexpr, CONSTANTS: gl.constexpr
):
    """The scores of a block beside the values of the one before it: the state with both.

    The state: sums of values up to the block before, RESCALED to the new maximum or as they are, its weights, sums of
    weights, the maximum."""
    sums, weights, lanes, maximum = state
    SCORES: gl.constexpr = maximum.type.layout.parent
    WEIGHTS: gl.constexpr = weights.type.layout
    SUM_ROW: gl.constexpr = gl.SliceLayout(1, sums.type.layout)
    k_shared, v_shared = shared
    ready, free = barriers
    before, stage = (loaded - 1) % CONSTANTS.STAGES, loaded % CONSTANTS.STAGES
    mbarrier.wait(ready.index(stage), loaded // CONSTANTS.STAGES & 1)
    scores = scores_of(q_shared, k_shared.index(stage), SCORES)
    sums = warpgroup_mma(weights, v_shared.index(before), sums, is_async=True)
    scores = warpgroup_mma_wait(1, deps=[scores])
    scores = masked(scores, block, view, CONSTANTS)
    maximum, level, shrink = raised_by(scores, maximum, c)
    sums = warpgroup_mma_wait(0, deps=[sums])
    mbarrier.arrive(free.index(before))
    if RESCALED:
        sums = rescaled(sums, gl.convert_layout(shrink, SUM_ROW, assert_trivial=True), ROWS, CONSTANTS.HEAD)
    weights, lanes = weigh(scores, lanes, level, shrink, c)
    weights = gl.convert_layout(weights.to(v_shared.dtype), WEIGHTS, assert_trivial=True)
    return sums, weights, lanes, maximum


@gluon.jit
def attend(start, end, loaded, queries, shared, barriers, view, c, CONSTANTS: gl.constexpr):
    """One group's queries of a tile against blocks start..end-1, of which there are some: (sums of values, of weights,
    maxima). The memory of the queries is given back as soon as the last scores are there."""
    HEAD: gl.constexpr = CONSTANTS.HEAD
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    SUM_ROW: gl.constexpr = gl.SliceLayout(1, SUMS)
    q_shared, q_free = queries
    k_shared, v_shared = shared
    ready, free = barriers
    sums = gl.zeros((ROWS, HEAD), gl.float32, SUMS)
    lanes = folded(gl.zeros((ROWS, BLOCK), gl.float32, SCORES))
    maximum = gl.full((ROWS,), float("-inf"), gl.float32, ROW)

    mbarrier.wait(ready.index(loaded % CONSTANTS.STAGES), loaded // CONSTANTS.STAGES & 1)
    scores = warpgroup_mma_wait(0, deps=[scores_of(q_shared, k_shared.index(loaded % CONSTANTS.STAGES), SCORES)])
    scores = masked(scores, start, view, CONSTANTS)
    maximum, level, shrink = raised_by(scores, maximum, c)
    weights, lanes = weigh(scores, lanes, level, shrink, c)
    weights = gl.convert_layout(weights.to(v_shared.dtype), WEIGHTS, assert_trivial=True)
    state = (sums, weights, lanes, maximum)
    loaded += 1
    if CONSTANTS.SEVERAL:
        past, past_total = gl.zeros((ROWS, HEAD), gl.float32, SUMS), gl.zeros((ROWS,), gl.float32, SUM_ROW)
        past_maximum = gl.full((ROWS,), float("-inf"), gl.float32, SUM_ROW)
        first_split, last_split = start // CONSTANTS.SPLIT, (end - 1) // CONSTANTS.SPLIT
        for split in range(first_split, last_split + 1):
            for block in range(
                gl.maximum(split * CONSTANTS.SPLIT, start) + 1,
                gl.minimum(split * CONSTANTS.SPLIT + CONSTANTS.SPLIT, end),
            ):
                state = next_block(block, loaded, state, q_shared, shared, barriers, view, c, True, CONSTANTS)
                loaded += 1
            if split < last_split:
                # The first block of the next split has sums of weights and a maximum of its own.
                total, largest = total_of(state[2], SUM_ROW), gl.convert_layout(state[3], SUM_ROW)
                none = gl.full((ROWS,), float("-inf"), gl.float32, ROW)
                fresh = (state[0], state[1], folded(gl.zeros((ROWS, BLOCK), gl.float32, SCORES)), none)
                state = next_block(
                    split * CONSTANTS.SPLIT + CONSTANTS.SPLIT,
                    loaded,
                    fresh,
                    q_shared,
                    shared,
                    barriers,
                    view,
                    c,
                    False,
                    CONSTANTS,
                )
                loaded += 1
                past, past_total, past_maximum = merged(
                    past, past_total, past_maximum, state[0], total, largest, c, False
                )
                state = (gl.zeros((ROWS, HEAD), gl.float32, SUMS), state[1], state[2], state[3])
    else:
        for block in range(start + 1, end):
            state = next_block(block, loaded, state, q_shared, shared, barriers, view, c, True, CONSTANTS)
            loaded += 1
    mbarrier.arrive(q_free)
    sums, weights, lanes, maximum = state
    last = (loaded - 1) % CONSTANTS.STAGES
    sums = warpgroup_mma_wait(0, deps=[warpgroup_mma(weights, v_shared.index(last), sums, is_async=True)])
    mbarrier.arrive(free.index(last))
    total, largest = total_of(lanes, SUM_ROW), gl.convert_layout(maximum, SUM_ROW, assert_trivial=True)
    if CONSTANTS.SEVERAL:
        merges = last_split > first_split
        if merges:
            sums, total, largest = merged(past, past_total, past_maximum, sums, total, largest, c, False)
    return sums, total, largest
