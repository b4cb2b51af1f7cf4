"""Tiles of attention's forward pass that were marked as not finite, done again with care by Triton.

What is not finite may have come from a key that a row does not see (0 * NaN). The walk is that of `attention_forward`
in triton_forward.py, so the bits are its. Some marks a program. Knows no launch."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.ops.attention.triton_blocks import key_range, load_rows, store_rows
from samebits.ops.attention.triton_forward import within
from samebits.ops.attention.triton_forward_softmax import softmax_of
from samebits.ops.attention.triton_marked import MARKED, MARKS, PART, marked_of
from samebits.ops.attention.triton_merge import finished, merged


@triton.jit(
    do_not_specialize=["q_token", "k_token", "v_token", "heads", "marks", "line_marks", "window", "c"],
    do_not_specialize_on_alignment=[
        "q_ptr",
        "k_ptr",
        "v_ptr",
        "marks_ptr",
        "out_ptr",
        "lse_ptr",
        "q_start_ptr",
        "q_length_ptr",
        "k_start_ptr",
        "k_length_ptr",
    ],
)
def attention_forward_marked(
    q_ptr,
    k_ptr,
    v_ptr,
    marks_ptr,
    out_ptr,
    lse_ptr,
    q_start_ptr,
    q_length_ptr,
    k_start_ptr,
    k_length_ptr,
    q_token: tl.int64,
    k_token: tl.int64,
    v_token: tl.int64,
    heads: tl.int32,
    marks: tl.int32,
    line_marks: tl.int32,
    window: tl.int32,
    c: tl.float32,
    HEAD: tl.constexpr,
    GROUP: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Marked tiles of queries, a part of a tile at a time, split after split."""
    first_mark, some = marked_of(marks_ptr, marks)
    if not some:
        return
    for mark in range(first_mark, min(first_mark + MARKS, marks)):
        if tl.load(marks_ptr + mark) != 0:
            line, marked = mark // line_marks, mark % line_marks * MARKED
            sequence, head = line // heads, line % heads
            key_head = head // GROUP
            q_length = tl.load(q_length_ptr + sequence).to(tl.int32)
            k_length = tl.load(k_length_ptr + sequence).to(tl.int32)
            q_start = tl.load(q_start_ptr + sequence).to(tl.int64)
            k_start = tl.load(k_start_ptr + sequence).to(tl.int64)
            offset = k_length - q_length
            for first in range(marked, min(marked + MARKED, q_length), PART):
                rows = tl.arange(0, PART)
                inside = first + rows < q_length
                token = q_start + first
                q = load_rows(q_ptr + token * q_token + head * HEAD, rows * q_token, inside, HEAD, HEAD, True, True)
                last = offset + min(first + PART, q_length) - 1
                start, full_start, full_end, end = key_range(
                    offset + first, last, k_length, window, 64, CAUSAL, WINDOWED
                )
                sums, total = tl.zeros((PART, HEAD), dtype=tl.float32), tl.zeros((PART,), dtype=tl.float32)
                maximum = tl.full((PART,), float("-inf"), dtype=tl.float32)
                first_split = start // SPLIT
                for split in tl.range(first_split, tl.cdiv(end, SPLIT), num_stages=1):
                    own, own_total, own_maximum = softmax_of(
                        q,
                        k_ptr + key_head * HEAD,
                        v_ptr + key_head * HEAD,
                        None,
                        None,
                        None,
                        offset + first + rows,
                        k_start,
                        k_length,
                        key_head,
                        k_token,
                        v_token,
                        0,
                        window,
                        c,
                        1.0,
                        0.0,
                        within(start, split, SPLIT),
                        within(full_start, split, SPLIT),
                        within(full_end, split, SPLIT),
                        within(end, split, SPLIT),
                        HEAD,
                        HEAD,
                        PART,
                        CAUSAL,
                        WINDOWED,
                        False,
                        False,
                        False,
                        True,
                        False,
                    )
                    if split > first_split:
                        own, own_total, own_maximum = merged(
                            sums, total, maximum, own, own_total, own_maximum, c, False
                        )
                    sums, total, maximum = own, own_total, own_maximum
                result, lse = finished(sums, total, maximum, c)
                row = token * heads + head
                store_rows(out_ptr + row * HEAD, rows * (heads * HEAD), inside, result, HEAD, HEAD)
                tl.store(lse_ptr + row + rows * heads, lse, mask=inside)
