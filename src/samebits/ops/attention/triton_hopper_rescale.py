"""Rescaling of attention's sums on Hopper, left out where no row of a warp has a larger score than before.

A factor of exactly 1 changes no bit, and after some blocks most factors are 1. Gluon has no branch by warp, so this is
assembly. It also keeps the assembler from working up one row of a thread after the other: the factors of both are done
before it. Knows no launch."""

from __future__ import annotations

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

SOME_CHANGE = gl.constexpr("""{
.reg .pred changes;
setp.neu.f32 changes, $2, 0f3F800000;
setp.neu.or.f32 changes, $3, 0f3F800000, changes;
vote.sync.any.pred changes, changes, 0xffffffff;
selp.b32 $0, 1, 0, changes;
mov.b32 $1, $0;
}""")
"""Of the factors of a thread's two rows, or of any in its warp, whether one is not 1: of NaN it is said, too."""


@triton.constexpr_function
def multiplied(count: int) -> str:
    """So many sums become products of themselves and the factors behind them, where the flag behind those is set."""
    products = "\n".join(f"mul.rn.f32 ${n}, ${n}, ${2 * count + n};" for n in range(count))
    return f"""{{
.reg .pred changes;
setp.ne.b32 changes, ${3 * count}, 0;
@!changes bra.uni same;
{products}
same:
}}"""


@triton.constexpr_function
def constraints_of(count: int) -> str:
    """Results stand where the sums stood; factors, and the flags, of which one is read."""
    return ",".join(["=f"] * count + [str(n) for n in range(count)] + ["f"] * count + ["r"] * count)


@gluon.jit
def rescaled(sums, shrink, ROWS: gl.constexpr, HEAD: gl.constexpr):
    """sums * shrink[:, None], by each warp where a factor of its rows is not 1."""
    COUNT: gl.constexpr = ROWS * HEAD // 128
    some = gl.inline_asm_elementwise(SOME_CHANGE, "=r,=r,f,f", [shrink], gl.int32, is_pure=False, pack=2)
    factors, _ = gl.broadcast(shrink[:, None], sums)
    flags, _ = gl.broadcast(some[:, None], sums)
    return gl.inline_asm_elementwise(
        multiplied(COUNT), constraints_of(COUNT), [sums, factors, flags], gl.float32, is_pure=False, pack=COUNT
    )
