"""What the kernels of the backward pass for Hopper share: products without an accumulator, waiting.

Knows no launch and no loads."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma

from samebits.ops.attention.triton_hopper_tiles import BLOCK, ROWS

GROUPS = gl.constexpr(2)
"""Groups of warps that compute: three would have too few registers."""


@gluon.jit
def product(left, right, LAYOUT: gl.constexpr):
    """Begins left times right transposed: 64 rows against 64 rows, a chain along the head."""
    nothing = gl.zeros((ROWS, BLOCK), gl.float32, LAYOUT)
    return warpgroup_mma(left, right.permute((1, 0)), nothing, use_acc=False, is_async=True)


@gluon.jit
def wait_for_block(loaded, ready, CONSTANTS: gl.constexpr):
    """The stage that holds the block, once it is there."""
    stage = loaded % CONSTANTS.STAGES
    mbarrier.wait(ready.index(stage), loaded // CONSTANTS.STAGES & 1)
    return stage
