"""The product of a few rows with a weight, by Gluon: weights come before the wait for the kernel that writes the rows.

One chain over K, ascending in steps of 16, in float32, rounded once: that of `matmul_described`, so the same bits. One
warp copies weights and rows into shared memory, four compute. Knows no launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from samebits.numerics.elementary.triton_generated import sigmoid
from samebits.ops.attention.triton_hopper_tiles import barriers_of

PREFETCH = gl.constexpr("cp.async.bulk.prefetch.L2.global [$1], $2; // dummy $0")
"""So many bytes from an address on into the second cache; nothing waits for them."""


@dataclass(frozen=True, slots=True)
class Constants:
    """What a compiled kernel is made for."""

    FEATURES: int
    """Rows of the weight in a tile: 64 by the asynchronous products of Hopper, 32 by those of a warp."""
    ROWS: int
    """Of the batch, rounded up."""
    DEPTH: int
    """Of a step along K."""
    STAGES: int
    """Steps on their way into shared memory."""
    PARTS: int
    """Weights that meet the same rows: 2 for gate and up, which lie end to end."""
    AHEAD: bool
    """More weights than shared memory takes go to the second cache before the wait."""
    EARLY: bool
    """The next kernel may begin as soon as this one has; else when all of a program's weights are on their way."""


@triton.constexpr_function
def constants(*values: Any) -> Constants:
    return Constants(*values)


@triton.constexpr_function
def sums_layout(features: int, rows: int) -> gl.NVMMADistributedLayout:
    """Who holds which sums: of a product of four warps together, or of products of a warp each."""
    if features == 64:
        return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, rows, 16])
    return gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 8])


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
        at = [part * features + tile * CONSTANTS.FEATURES, step * CONSTANTS.DEPTH]
        tma.async_copy_global_to_shared(weight, at, ready.index(stage), shared.index(stage * PARTS + part))


@gluon.jit
def load_rows(number, rows, shared, ready, sizes, CONSTANTS: gl.constexpr):
    """Begins to copy the number-th step's rows, which an earlier kernel of the step wrote."""
    stage, step = number % CONSTANTS.STAGES, number % sizes[1]
    tma.async_copy_global_to_shared(rows, [0, step * CONSTANTS.DEPTH], ready.index(stage), shared.index(stage))


@gluon.jit
def prefetch(weight_ptr, depth, ahead, features, CONSTANTS: gl.constexpr):
    """Columns of the program's first tile, behind those on their way to shared memory, into the second cache. Decides
    nothing: no register holds them."""
    FEATURES: gl.constexpr = CONSTANTS.FEATURES
    FIRST: gl.constexpr = CONSTANTS.STAGES * CONSTANTS.DEPTH
    LINES: gl.constexpr = gl.BlockedLayout([FEATURES // 32], [32], [1], [0])
    columns = gl.minimum(depth - FIRST, ahead)
    if columns > 0:
        lines = gl.program_id(0) * FEATURES + gl.arange(0, FEATURES, LINES)
        lines = gl.minimum(lines, features - 1).to(gl.int64)
        size = gl.full((FEATURES,), 2, gl.int32, LINES) * columns
        PARTS: gl.constexpr = CONSTANTS.PARTS
        for part in gl.static_range(PARTS):
            pointers = weight_ptr + (lines + part * features) * depth + FIRST
            gl.inline_asm_elementwise(PREFETCH, "=r,l,r", [pointers, size], gl.int32, is_pure=False, pack=1)


@gluon.jit
def load(described, weight_ptr, shared, barriers, sizes, depth, ahead, CONSTANTS: gl.constexpr):
    """The warp that loads: the first stages' weights, the wait, their rows, then step after step."""
    weight_shared, rows_shared = shared
    ready, free = barriers
    tiles, steps, features = sizes
    if CONSTANTS.EARLY:
        gdc_launch_dependents()
    count = gl.cdiv(tiles - gl.program_id(0), gl.num_programs(0)) * steps
    first = gl.minimum(count, CONSTANTS.STAGES)
    for number in range(first):
        load_weights(number, described, weight_shared, ready, sizes, CONSTANTS)
    if CONSTANTS.AHEAD:
        prefetch(weight_ptr, depth, ahead, features, CONSTANTS)
    # Before this line: weights alone, which no kernel of a step writes, into shared memory of this program's own.
    gdc_wait()
    for number in range(first):
        load_rows(number, described[1], rows_shared, ready, sizes, CONSTANTS)
    for number in range(first, count):
        mbarrier.wait(free.index(number % CONSTANTS.STAGES), number // CONSTANTS.STAGES & 1 ^ 1)
        load_weights(number, described, weight_shared, ready, sizes, CONSTANTS)
        load_rows(number, described[1], rows_shared, ready, sizes, CONSTANTS)
    if not CONSTANTS.EARLY:
        gdc_launch_dependents()


@gluon.jit
def add_step(sums, weight, rows, CONSTANTS: gl.constexpr):
    """sums + weight @ rows transposed, DEPTH products each, in order."""
    if CONSTANTS.FEATURES == 64:
        return warpgroup_mma_wait(0, deps=[warpgroup_mma(weight, rows.permute((1, 0)), sums, is_async=True)])
    else:
        SUMS: gl.constexpr = sums.type.layout
        left = weight.load(gl.DotOperandLayout(0, SUMS, 2))
        right = rows.permute((1, 0)).load(gl.DotOperandLayout(1, SUMS, 2))
        return mma_v2(left, right, sums)


@gluon.jit
def store(out_ptr, gate, up, tile, rows, features, CONSTANTS: gl.constexpr):
    """Rounds a tile once and stores it; of gate and up, rounded, (gate * sigmoid(gate)) * up, rounded again."""
    dtype: gl.constexpr = out_ptr.dtype.element_ty
    SUMS: gl.constexpr = gate.type.layout
    result = gate.to(dtype)
    if CONSTANTS.PARTS == 2:
        opened = result.to(gl.float32)
        result = ((opened * sigmoid(opened)) * up.to(dtype).to(gl.float32)).to(dtype)
    FEATURES: gl.constexpr = CONSTANTS.FEATURES
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
    FEATURES: gl.constexpr = CONSTANTS.FEATURES
    ROWS: gl.constexpr = CONSTANTS.ROWS
    PARTS: gl.constexpr = CONSTANTS.PARTS
    SUMS: gl.constexpr = sums_layout(FEATURES, ROWS)
    # Whoever still reads what `out` held is done after it: every kernel before waited itself before it ended.
    gdc_wait()
    number = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        gate = gl.zeros((FEATURES, ROWS), gl.float32, SUMS)
        up = gate
        for _ in range(steps):
            stage = number % CONSTANTS.STAGES
            mbarrier.wait(ready.index(stage), number // CONSTANTS.STAGES & 1)
            gate = add_step(gate, weight_shared.index(stage * PARTS), rows_shared.index(stage), CONSTANTS)
            if PARTS == 2:
                up = add_step(up, weight_shared.index(stage * PARTS + 1), rows_shared.index(stage), CONSTANTS)
            mbarrier.arrive(free.index(stage))
            number += 1
        store(out_ptr, gate, up, tile, rows, features, CONSTANTS)


@gluon.jit(
    do_not_specialize=["rows", "features", "depth", "ahead", "tiles", "steps"],
    do_not_specialize_on_alignment=["weight_ptr", "out_ptr"],
)
def product_of_few_rows(
    weight,
    x,
    weight_ptr,
    out_ptr,
    rows: gl.int32,
    features: gl.int32,
    depth: gl.int32,
    ahead: gl.int32,
    tiles: gl.int32,
    steps: gl.int32,
    FEATURES: gl.constexpr,
    ROWS: gl.constexpr,
    DEPTH: gl.constexpr,
    STAGES: gl.constexpr,
    PARTS: gl.constexpr,
    AHEAD: gl.constexpr,
    EARLY: gl.constexpr,
):
    """out (rows, features) = round(x @ weight.T), or the gated product of two halves of the weight."""
    CONSTANTS: gl.constexpr = constants(FEATURES, ROWS, DEPTH, STAGES, PARTS, AHEAD, EARLY)
    weight_shared = gl.allocate_shared_memory(weight.dtype, [STAGES * PARTS, FEATURES, DEPTH], weight.layout)
    rows_shared = gl.allocate_shared_memory(x.dtype, [STAGES, ROWS, DEPTH], x.layout)
    shared, barriers = (weight_shared, rows_shared), (barriers_of(STAGES, 1), barriers_of(STAGES, 1))
    sizes = (tiles, steps, features)
    gl.warp_specialize(
        [
            (compute, (out_ptr, shared, barriers, sizes, rows, CONSTANTS)),
            (load, ((weight, x), weight_ptr, shared, barriers, sizes, depth, ahead, CONSTANTS)),
        ],
        [1],
        [32],
    )
