"""Kernels in use, begun before the kernel before them has ended: the wait, then what they always did.

What holds for every kernel of this folder (programmatic dependent launch, PTX's `griddepcontrol`):

- Read before written: what a kernel of the step wrote is read after the wait alone, which lasts until the kernel before
  has ended and what it wrote can be seen. What no kernel of the step writes may be read before it: weights,
  frequencies, and what is copied in before the step begins (positions, pages, rows of the cache to be written). The
  step's first kernel is launched without the attribute, so that copies in are done before any of them.
- Written while others read: nothing is written before the wait. Every program waits before it ends, on every path, so
  that a kernel's end means that all kernels before it have ended as well; so after the wait nobody is left who could
  read what memory held before, however often an allocator has given it out again within the step.
- Who may begin: the next kernel does once every program of this one has said so. All of these programs are then on
  multiprocessors already, so that those of the next one, which may fill what is left, cannot keep them from it.

Knows no launch."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from samebits.ops.attention.triton_forward import attention_forward
from samebits.ops.attention.triton_merge import attention_merge
from samebits.ops.rmsnorm.triton_kernel import rmsnorm_forward


@triton.jit
def begin():
    """The next kernel may begin; this one goes on when the one before it has ended."""
    gdc_launch_dependents()
    gdc_wait()


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
    begin()
    rmsnorm_forward(
        x_ptr, residual_ptr, weight_ptr, y_ptr, hidden_ptr, rstd_ptr, M, H, reciprocal, eps, ROWS, STEPS, ALIGNED
    )


@triton.jit(
    do_not_specialize=attention_forward.do_not_specialize,
    do_not_specialize_on_alignment=attention_forward.do_not_specialize_on_alignment,
)
def attention_waiting(
    q_ptr,
    k_ptr,
    v_ptr,
    k_described,
    v_described,
    out_ptr,
    lse_ptr,
    sums_ptr,
    totals_ptr,
    maxima_ptr,
    q_start_ptr,
    q_length_ptr,
    k_start_ptr,
    k_length_ptr,
    pages_ptr,
    q_token: tl.int64,
    q_head: tl.int64,
    k_token: tl.int64,
    k_head: tl.int64,
    v_token: tl.int64,
    v_head: tl.int64,
    pages_row: tl.int64,
    states: tl.int64,
    page_size: tl.int32,
    heads: tl.int32,
    tiles: tl.int32,
    splits: tl.int32,
    window: tl.int32,
    c: tl.float32,
    cap_factor: tl.float32,
    cap: tl.float32,
    HEAD: tl.constexpr,
    PADDED: tl.constexpr,
    GROUP: tl.constexpr,
    PACK: tl.constexpr,
    TILE: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    DESCRIBED: tl.constexpr,
    PAGED: tl.constexpr,
    ALIGNED: tl.constexpr,
    EXACT: tl.constexpr,
    SEVERAL: tl.constexpr,
    ALONE: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """`attention_forward` after the wait: queries, the last key and value, and lengths are written within the step."""
    begin()
    attention_forward(
        q_ptr,
        k_ptr,
        v_ptr,
        k_described,
        v_described,
        out_ptr,
        lse_ptr,
        sums_ptr,
        totals_ptr,
        maxima_ptr,
        q_start_ptr,
        q_length_ptr,
        k_start_ptr,
        k_length_ptr,
        pages_ptr,
        q_token,
        q_head,
        k_token,
        k_head,
        v_token,
        v_head,
        pages_row,
        states,
        page_size,
        heads,
        tiles,
        splits,
        window,
        c,
        cap_factor,
        cap,
        HEAD,
        PADDED,
        GROUP,
        PACK,
        TILE,
        CAUSAL,
        WINDOWED,
        SOFTCAP,
        DESCRIBED,
        PAGED,
        ALIGNED,
        EXACT,
        SEVERAL,
        ALONE,
        SPLIT,
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
    begin()
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
