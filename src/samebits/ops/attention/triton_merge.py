"""The merge of attention's splits by Triton, left to right, and what makes a result of sums that are done.

Knows no launch. A split in which a row sees no key has what it started with; the merge with that leaves the other side
as it is, but for the sign of a zero sum, which is settled at the end."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.numerics.elementary.triton_generated import log
from samebits.ops.attention.triton_blocks import load_rows, power_of_two, store_rows


@triton.jit
def level_of(maximum, c):
    """What is subtracted from exponents under a maximum."""
    return tl.where(maximum == float("-inf"), 0.0, maximum) * c


@triton.jit
def merged(accumulator, total, maximum, sums, weights, largest, c, EXACT: tl.constexpr):
    """What is merged so far, and the next split. A factor is 1 where a maximum stays, even if its level overflows."""
    raised = tl.maximum(maximum, largest)
    level = level_of(raised, c)
    before = tl.where(raised == maximum, 1.0, power_of_two(maximum * c - level, EXACT))
    now = tl.where(raised == largest, 1.0, power_of_two(largest * c - level, EXACT))
    accumulator = tl.fma(sums, now[:, None], accumulator * before[:, None])
    return accumulator, tl.fma(weights, now, total * before), raised


@triton.jit
def state_of(sums_ptr, totals_ptr, maxima_ptr, state, known, HEAD: tl.constexpr, PADDED: tl.constexpr):
    """What a split gave to one row, or what it starts with."""
    one = tl.arange(0, 1)
    sums = load_rows(sums_ptr + state * HEAD, one, known, HEAD, PADDED, True, True)
    weights = tl.load(totals_ptr + state + one, mask=known, other=0.0)
    return sums, weights, tl.load(maxima_ptr + state + one, mask=known, other=float("-inf"))


@triton.jit
def logarithm_of(total, maximum, c):
    """The logarithm to the base 2 of a sum of weights; +inf where no key was seen."""
    return tl.where(total == 0.0, float("inf"), level_of(maximum, c) + log(total) * 1.4426950408889634)


@triton.jit
def inverse_of(total):
    """What sums of values are multiplied by; 0 where no key was seen."""
    return tl.where(total == 0.0, 0.0, tl.div_rn(1.0, total))


@triton.jit
def finished(accumulator, total, maximum, c):
    """(output before it is rounded, logarithm of the sum of weights)."""
    # A sum that underflowed to -0 becomes +0, whether or not zeros of unseen keys were added to it.
    scaled = tl.fma(accumulator, inverse_of(total)[:, None], 0.0)
    return tl.where((total == 0.0)[:, None], 0.0, scaled), logarithm_of(total, maximum, c)


@triton.jit(
    do_not_specialize=["states", "heads", "longest_query", "c"],
    do_not_specialize_on_alignment=[
        "out_ptr",
        "lse_ptr",
        "sums_ptr",
        "totals_ptr",
        "maxima_ptr",
        "q_start_ptr",
        "q_length_ptr",
        "k_length_ptr",
    ],
)
def attention_merge(
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
    """The states that programs of attention_forward left of one query and head, split after split.

    They are read AT_ONCE at a time, so that memory is not waited for at every one."""
    program = tl.program_id(0)
    sequence, query, head = program // heads // longest_query, program // heads % longest_query, program % heads
    q_length, k_length = tl.load(q_length_ptr + sequence).to(tl.int32), tl.load(k_length_ptr + sequence).to(tl.int32)
    if query >= q_length:
        return
    row = (tl.load(q_start_ptr + sequence).to(tl.int64) + query) * heads + head
    splits = tl.cdiv(k_length, SPLIT * 64)
    one = tl.arange(0, 1)
    accumulator, total, maximum = state_of(sums_ptr, totals_ptr, maxima_ptr, row, one < splits, HEAD, PADDED)
    for first in tl.range(1, splits, AT_ONCE, num_stages=1):
        for later in tl.static_range(AT_ONCE):
            here, state = one + first + later < splits, states * (first + later) + row
            sums, weights, largest = state_of(sums_ptr, totals_ptr, maxima_ptr, state, here, HEAD, PADDED)
            sums, weights, largest = merged(accumulator, total, maximum, sums, weights, largest, c, EXACT)
            accumulator = tl.where(here[:, None], sums, accumulator)
            total, maximum = tl.where(here, weights, total), tl.where(here, largest, maximum)
    result, lse = finished(accumulator, total, maximum, c)
    inside = one < 1
    store_rows(out_ptr + row * HEAD, one, inside, result, HEAD, PADDED)
    tl.store(lse_ptr + row + one, lse, mask=inside)
