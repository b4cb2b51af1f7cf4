"""Tiles of the backward pass that were marked as not finite, done again with care by Triton.

What is not finite may have come from a pair that a mask separates (0 * NaN). The walks are those of the kernels in
this folder, so the bits are theirs. Knows no launch."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.ops.attention.triton_backward_walks import scaled, walk_keys, walk_queries
from samebits.ops.attention.triton_blocks import key_range, load_rows, query_range, store_rows

MARKED = tl.constexpr(64)
"""Rows of a mark."""
PART = tl.constexpr(16)
"""Rows that are done at a time, and of the blocks that they walk: care takes registers."""
MARKS = tl.constexpr(32)
"""Of a program."""


@triton.jit
def marked_of(marks_ptr, marks):
    """The first of this program's marks, and whether there is one."""
    first = tl.program_id(0) * MARKS
    numbers = first + tl.arange(0, MARKS)
    return first, tl.max(tl.load(marks_ptr + numbers, mask=numbers < marks, other=0), 0) > 0


@triton.jit(
    do_not_specialize=[
        "q_token",
        "k_token",
        "v_token",
        "do_token",
        "pitch",
        "heads",
        "marks",
        "line_marks",
        "window",
        "c",
        "scale",
    ],
    do_not_specialize_on_alignment=[
        "q_ptr",
        "k_ptr",
        "v_ptr",
        "do_ptr",
        "statistics_ptr",
        "marks_ptr",
        "dq_ptr",
        "q_start_ptr",
        "q_length_ptr",
        "k_start_ptr",
        "k_length_ptr",
    ],
)
def attention_dq_marked(
    q_ptr,
    k_ptr,
    v_ptr,
    do_ptr,
    statistics_ptr,
    marks_ptr,
    dq_ptr,
    q_start_ptr,
    q_length_ptr,
    k_start_ptr,
    k_length_ptr,
    q_token: tl.int64,
    k_token: tl.int64,
    v_token: tl.int64,
    do_token: tl.int64,
    pitch: tl.int64,
    heads: tl.int32,
    marks: tl.int32,
    line_marks: tl.int32,
    window: tl.int32,
    c: tl.float32,
    scale: tl.float32,
    HEAD: tl.constexpr,
    GROUP: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
):
    """dQ of marked tiles of queries, as `attention_dq` has it."""
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
            q_start, k_start = (
                tl.load(q_start_ptr + sequence).to(tl.int64),
                tl.load(k_start_ptr + sequence).to(tl.int64),
            )
            offset = k_length - q_length
            for first in range(marked, min(marked + MARKED, q_length), PART):
                rows = tl.arange(0, PART)
                queries = first + rows
                inside = queries < q_length
                token = q_start + first
                q = load_rows(q_ptr + token * q_token + head * HEAD, rows * q_token, inside, HEAD, HEAD, True, True)
                do = load_rows(do_ptr + token * do_token + head * HEAD, rows * do_token, inside, HEAD, HEAD, True, True)
                places = statistics_ptr + (sequence * 2 * heads + head) * pitch + queries
                last = offset + min(first + PART, q_length) - 1
                start, _, _, end = key_range(offset + first, last, k_length, window, PART, CAUSAL, WINDOWED)
                dq = walk_keys(
                    tl.zeros((PART, HEAD), dtype=tl.float32),
                    q,
                    do,
                    tl.load(places, mask=inside, other=0.0),
                    tl.load(places + heads * pitch, mask=inside, other=0.0),
                    k_ptr + key_head * HEAD,
                    v_ptr + key_head * HEAD,
                    None,
                    None,
                    offset + queries,
                    k_start,
                    k_length,
                    key_head,
                    k_token,
                    v_token,
                    window,
                    c,
                    1.0,
                    0.0,
                    start,
                    end,
                    HEAD,
                    HEAD,
                    PART,
                    True,
                    True,
                    CAUSAL,
                    WINDOWED,
                    False,
                    False,
                    True,
                    False,
                )
                row = (token * heads + head) * HEAD
                store_rows(dq_ptr + row, rows * (heads * HEAD), inside, scaled(dq, scale), HEAD, HEAD)


@triton.jit(
    do_not_specialize=[
        "q_token",
        "k_token",
        "v_token",
        "do_token",
        "pitch",
        "heads",
        "marks",
        "line_marks",
        "window",
        "c",
        "scale",
    ],
    do_not_specialize_on_alignment=[
        "q_ptr",
        "k_ptr",
        "v_ptr",
        "do_ptr",
        "statistics_ptr",
        "marks_ptr",
        "dk_ptr",
        "dv_ptr",
        "q_start_ptr",
        "q_length_ptr",
        "k_start_ptr",
        "k_length_ptr",
    ],
)
def attention_dk_dv_marked(
    q_ptr,
    k_ptr,
    v_ptr,
    do_ptr,
    statistics_ptr,
    marks_ptr,
    dk_ptr,
    dv_ptr,
    q_start_ptr,
    q_length_ptr,
    k_start_ptr,
    k_length_ptr,
    q_token: tl.int64,
    k_token: tl.int64,
    v_token: tl.int64,
    do_token: tl.int64,
    pitch: tl.int64,
    heads: tl.int32,
    marks: tl.int32,
    line_marks: tl.int32,
    window: tl.int32,
    c: tl.float32,
    scale: tl.float32,
    HEAD: tl.constexpr,
    GROUP: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
):
    """dK and dV of marked tiles of keys, as `attention_dk_dv` has them."""
    first_mark, some = marked_of(marks_ptr, marks)
    if not some:
        return
    key_heads = heads // GROUP
    for mark in range(first_mark, min(first_mark + MARKS, marks)):
        if tl.load(marks_ptr + mark) != 0:
            line, marked = mark // line_marks, mark % line_marks * MARKED
            sequence, key_head = line // key_heads, line % key_heads
            q_length = tl.load(q_length_ptr + sequence).to(tl.int32)
            k_length = tl.load(k_length_ptr + sequence).to(tl.int32)
            q_start, k_start = (
                tl.load(q_start_ptr + sequence).to(tl.int64),
                tl.load(k_start_ptr + sequence).to(tl.int64),
            )
            offset = k_length - q_length
            for first in range(marked, min(marked + MARKED, k_length), PART):
                rows = tl.arange(0, PART)
                keys = first + rows
                known = keys < k_length
                token = k_start + first
                k = load_rows(k_ptr + token * k_token + key_head * HEAD, rows * k_token, known, HEAD, HEAD, True, True)
                v = load_rows(v_ptr + token * v_token + key_head * HEAD, rows * v_token, known, HEAD, HEAD, True, True)
                dk, dv = tl.zeros((PART, HEAD), dtype=tl.float32), tl.zeros((PART, HEAD), dtype=tl.float32)
                start, _, _, end = query_range(
                    first, min(first + PART, k_length) - 1, offset, q_length, window, PART, CAUSAL, WINDOWED
                )
                for member in range(GROUP):
                    head = key_head * GROUP + member
                    dk, dv = walk_queries(
                        dk,
                        dv,
                        k,
                        v,
                        q_ptr,
                        do_ptr,
                        statistics_ptr,
                        None,
                        None,
                        None,
                        keys,
                        q_start,
                        q_length,
                        k_length,
                        offset,
                        head,
                        sequence * 2 * heads + head,
                        heads,
                        pitch,
                        q_token,
                        HEAD,
                        do_token,
                        HEAD,
                        window,
                        c,
                        1.0,
                        0.0,
                        start,
                        end,
                        HEAD,
                        HEAD,
                        PART,
                        True,
                        True,
                        CAUSAL,
                        WINDOWED,
                        False,
                        False,
                        True,
                        False,
                    )
                row, offsets = (token * key_heads + key_head) * HEAD, rows * (key_heads * HEAD)
                store_rows(dk_ptr + row, offsets, known, scaled(dk, scale), HEAD, HEAD)
                store_rows(dv_ptr + row, offsets, known, dv + 0.0, HEAD, HEAD)
