"""Kernels in use, begun before the kernel before them has ended: the wait, then what they always did.

What holds for every kernel of this folder (programmatic dependent launch, PTX's `griddepcontrol`):

- Read before written: what a kernel of the step writes is read after the wait alone, which lasts until the kernel
  before has ended and what it wrote can be seen. What no kernel of the step writes may be read before it: weights,
  frequencies, and what is copied in before the step begins (positions, pages, rows of the cache to be written). Why
  those copies, and the next step's, cannot meet a kernel that reads them is said in step.py.
- Written while others read: nothing is written before the wait. Every program waits before it ends, on every path, so
  that a kernel's end means that all kernels before it have ended as well; so after the wait nobody is left who could
  read what memory held before, however often an allocator has given it out again within the step.
- Who may begin: the next kernel does once every program of this one has said so, or has ended. All of these programs
  are then on multiprocessors already, so that those of the next one, which may fill what is left, cannot keep them from
  it.

Knows no launch."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from samebits.ops.attention.triton_merge import attention_merge
from samebits.ops.rmsnorm.triton_kernel import rmsnorm_forward

LINE = tl.constexpr(64)
"""Numbers of 16 bits that come together."""
PREFETCH = tl.constexpr("prefetch.global.L2 [$1]; mov.u32 $0, 0;")


@triton.jit
def prefetch_lines(pointers):
    """Lines of memory into the second cache. Decides nothing: no register holds them, and whatever is written there
    later is seen."""
    tl.inline_asm_elementwise(PREFETCH, "=r,l", [pointers], tl.int32, is_pure=False, pack=1)


@triton.jit(
    do_not_specialize=rmsnorm_forward.do_not_specialize,
    do_not_specialize_on_alignment=rmsnorm_forward.do_not_specialize_on_alignment,
)
def rmsnorm_waiting(
    x_ptr,
    residual_ptr,
    weight_ptr,
    y_ptr,
    hidden_ptr,
    rstd_ptr,
    M: tl.int32,
    H: tl.int32,
    reciprocal: tl.float32,
    eps: tl.float32,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """`rmsnorm_forward` after the wait: all that it touches but the weight is written within the step."""
    gdc_launch_dependents()
    lines = tl.arange(0, 128) * LINE
    for start in range(0, H, 128 * LINE):
        prefetch_lines(weight_ptr + tl.minimum(start + lines, H - 1))
    gdc_wait()
    rmsnorm_forward(
        x_ptr, residual_ptr, weight_ptr, y_ptr, hidden_ptr, rstd_ptr, M, H, reciprocal, eps, ROWS, STEPS, ALIGNED
    )


@triton.jit(
    do_not_specialize=attention_merge.do_not_specialize,
    do_not_specialize_on_alignment=attention_merge.do_not_specialize_on_alignment,
)
def merge_waiting(
    out_ptr,
    lse_ptr,
    sums_ptr,
    totals_ptr,
    maxima_ptr,
    q_start_ptr,
    q_length_ptr,
    k_length_ptr,
    states: tl.int64,
    heads: tl.int32,
    longest_query: tl.int32,
    c: tl.float32,
    HEAD: tl.constexpr,
    PADDED: tl.constexpr,
    EXACT: tl.constexpr,
    SPLIT: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """`attention_merge` after the wait: the states of splits are written by the kernel before."""
    gdc_launch_dependents()
    gdc_wait()
    attention_merge(
        out_ptr,
        lse_ptr,
        sums_ptr,
        totals_ptr,
        maxima_ptr,
        q_start_ptr,
        q_length_ptr,
        k_length_ptr,
        states,
        heads,
        longest_query,
        c,
        HEAD,
        PADDED,
        EXACT,
        SPLIT,
        AT_ONCE,
    )
