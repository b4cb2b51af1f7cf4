"""The product of a few rows with a weight, by Gluon: weights come before the wait for the kernel that writes the rows.

One chain over K, ascending in steps of 16, in float32, rounded once: that of `matmul_described`, so the same bits. One
warp copies weights and rows into shared memory, four compute. Knows no launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from samebits.numerics.elementary.triton_generated import sigmoid
from samebits.ops.attention.triton_hopper_tiles import barriers_of

FEATURES = gl.constexpr(64)
"""Rows of the weight in a tile: those of one asynchronous product of four warps."""


@dataclass(frozen=True, slots=True)
class Constants:
    """What a compiled kernel is made for."""

    ROWS: int
    """Of the batch, rounded up."""
    DEPTH: int
    """Of a step along K."""
    STAGES: int
    """Steps on their way into shared memory."""
    PARTS: int
    """Weights that meet the same rows: 2 for gate and up, which lie end to end."""
    OVERLAPPED: bool
    """A step's products begin before those of the step before are done; else each step waits for its own."""


@triton.constexpr_function
def constants(*values: Any) -> Constants:
    return Constants(*values)


@triton.constexpr_function
def sums_layout(rows: int) -> gl.NVMMADistributedLayout:
    """Who holds which sums of a product of four warps together."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, rows, 16])


@gluon.jit
def load_weights(number, described, shared, ready, sizes, CONSTANTS: gl.constexpr):
    """Tells of the number-th step's bytes and begins to copy its weights. Nobody writes weights within a step."""
    weight, rows = described
    _, steps, features = sizes
    stage, step = number % CONSTANTS.STAGES, number % steps
    tile = gl.program_id(0) + number // steps * gl.num_programs(0)
    PARTS: gl.constexpr = CONSTANTS.PARTS
    mbarrier.expect(ready.index(stage), PARTS * weight.block_type.nbytes + rows.block_type.nbytes)
    for part in gl.static_range(PARTS):
        at = [part * features + tile * FEATURES, step * CONSTANTS.DEPTH]
        tma.async_copy_global_to_shared(weight, at, ready.index(stage), shared.index(stage * PARTS + part))


@gluon.jit
def load_rows(number, rows, shared, ready, sizes, CONSTANTS: gl.constexpr):
    """Begins to copy the number-th step's rows, which an earlier kernel of the step wrote."""
    stage, step = number % CONSTANTS.STAGES, number % sizes[1]
    tma.async_copy_global_to_shared(rows, [0, step * CONSTANTS.DEPTH], ready.index(stage), shared.index(stage))


@gluon.jit
def load(described, shared, barriers, sizes, CONSTANTS: gl.constexpr):
    """The warp that loads: the first stages' weights, the wait, their rows, then step after step."""
    weight_shared, rows_shared = shared
    ready, free = barriers
    tiles, steps, _ = sizes
    count = gl.cdiv(tiles - gl.program_id(0), gl.num_programs(0)) * steps
    first = gl.minimum(count, CONSTANTS.STAGES)
    for number in range(first):
        load_weights(number, described, weight_shared, ready, sizes, CONSTANTS)
    # Before this line: weights alone, which no kernel of a step writes, into shared memory of this program's own.
    gdc_wait()
    for number in range(first):
        load_rows(number, described[1], rows_shared, ready, sizes, CONSTANTS)
    for number in range(first, count):
        mbarrier.wait(free.index(number % CONSTANTS.STAGES), number // CONSTANTS.STAGES & 1 ^ 1)
        load_weights(number, described, weight_shared, ready, sizes, CONSTANTS)
        load_rows(number, described[1], rows_shared, ready, sizes, CONSTANTS)
    # All weights of this program are on their way: those of the next kernel cannot come before them.
    gdc_launch_dependents()


@gluon.jit
def add_step(sums, weight, rows, CONSTANTS: gl.constexpr):
    """sums + weight @ rows transposed, DEPTH products each, in order; where OVERLAPPED, what the sums will be."""
    added = warpgroup_mma(weight, rows.permute((1, 0)), sums, is_async=True)
    if CONSTANTS.OVERLAPPED:
        return added
    else:
        return warpgroup_mma_wait(0, deps=[added])


@gluon.jit
def store(out_ptr, gate, up, tile, rows, features, CONSTANTS: gl.constexpr):
    """Rounds a tile once and stores it; of gate and up, rounded, (gate * sigmoid(gate)) * up, rounded again."""
    dtype: gl.constexpr = out_ptr.dtype.element_ty
    SUMS: gl.constexpr = gate.type.layout
    result = gate.to(dtype)
    if CONSTANTS.PARTS == 2:
        opened = result.to(gl.float32)
        result = ((opened * sigmoid(opened)) * up.to(dtype).to(gl.float32)).to(dtype)
    ROWS: gl.constexpr = CONSTANTS.ROWS
    feature = tile * FEATURES + gl.arange(0, FEATURES, gl.SliceLayout(1, SUMS))
    row = gl.arange(0, ROWS, gl.SliceLayout(0, SUMS))
    pointers = out_ptr + row.to(gl.int64)[None, :] * features + feature[:, None]
    gl.store(pointers, result, mask=(feature < features)[:, None] & (row < rows)[None, :])


@gluon.jit
def compute(out_ptr, shared, barriers, sizes, rows, CONSTANTS: gl.constexpr):
    """The warps that compute: tile after tile, step after step."""
    weight_shared, rows_shared = shared
    ready, free = barriers
    tiles, steps, features = sizes
    ROWS: gl.constexpr = CONSTANTS.ROWS
    PARTS: gl.constexpr = CONSTANTS.PARTS
    SUMS: gl.constexpr = sums_layout(ROWS)
    # Whoever still reads what `out` held is done after it: every kernel before waited itself before it ended.
    gdc_wait()
    number = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        gate = gl.zeros((FEATURES, ROWS), gl.float32, SUMS)
        up = gate
        for step in range(steps):
            stage = number % CONSTANTS.STAGES
            mbarrier.wait(ready.index(stage), number // CONSTANTS.STAGES & 1)
            gate = add_step(gate, weight_shared.index(stage * PARTS), rows_shared.index(stage), CONSTANTS)
            if PARTS == 2:
                up = add_step(up, weight_shared.index(stage * PARTS + 1), rows_shared.index(stage), CONSTANTS)
            if CONSTANTS.OVERLAPPED:
                # Of this step alone products may still be under way: the stage before it is free.
                if PARTS == 2:
                    gate, up = warpgroup_mma_wait(PARTS, deps=[gate, up])
                else:
                    gate = warpgroup_mma_wait(PARTS, deps=[gate])
                if step > 0:
                    mbarrier.arrive(free.index((number - 1) % CONSTANTS.STAGES))
            else:
                mbarrier.arrive(free.index(stage))
            number += 1
        if CONSTANTS.OVERLAPPED:
            if PARTS == 2:
                gate, up = warpgroup_mma_wait(0, deps=[gate, up])
            else:
                gate = warpgroup_mma_wait(0, deps=[gate])
            mbarrier.arrive(free.index((number - 1) % CONSTANTS.STAGES))
        store(out_ptr, gate, up, tile, rows, features, CONSTANTS)


@gluon.jit(do_not_specialize=["rows", "features", "tiles", "steps"], do_not_specialize_on_alignment=["out_ptr"])
def product_of_few_rows(
    weight,
    x,
    out_ptr,
    rows: gl.int32,
    features: gl.int32,
    tiles: gl.int32,
    steps: gl.int32,
    ROWS: gl.constexpr,
    DEPTH: gl.constexpr,
    STAGES: gl.constexpr,
    PARTS: gl.constexpr,
    OVERLAPPED: gl.constexpr,
):
    """out (rows, features) = round(x @ weight.T), or the gated product of two halves of the weight."""
    CONSTANTS: gl.constexpr = constants(ROWS, DEPTH, STAGES, PARTS, OVERLAPPED)
    weight_shared = gl.allocate_shared_memory(weight.dtype, [STAGES * PARTS, FEATURES, DEPTH], weight.layout)
    rows_shared = gl.allocate_shared_memory(x.dtype, [STAGES, ROWS, DEPTH], x.layout)
    shared, barriers = (weight_shared, rows_shared), (barriers_of(STAGES, 1), barriers_of(STAGES, 1))
    sizes = (tiles, steps, features)
    gl.warp_specialize(
        [
            (compute, (out_ptr, shared, barriers, sizes, rows, CONSTANTS)),
            (load, ((weight, x), shared, barriers, sizes, CONSTANTS)),
        ],
        [1],
        [32],
    )
