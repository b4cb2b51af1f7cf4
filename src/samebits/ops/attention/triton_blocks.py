"""What attention's forward and backward kernels share: who sees whom, which blocks that concerns, how rows are read.

Knows no launch and no autograd. Positions are logical, counted from a sequence's own first key, wherever it lies."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from samebits.numerics.elementary.triton_generated import exp2, tanh
from samebits.ops._triton.launch import Described
from samebits.ops._triton.rows import one_addition


@triton.jit
def power_of_two(x, EXACT: tl.constexpr):
    """2^x: by the elementary function where the bits must equal those of the CPU, else by the hardware's own."""
    if EXACT:
        return exp2(x)
    else:
        return tl.exp2(x)


@triton.jit
def fold(values, ROWS: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr):
    """Adds the right half to the left, STEPS times. Each reduction is over two elements: no order is left to choose."""
    for step in tl.static_range(STEPS):
        values = tl.reduce(tl.reshape(values, (ROWS, 2, WIDTH >> (step + 1))), 1, one_addition)
    return values


@triton.jit
def capped(scores, inside_factor, cap, SOFTCAP: tl.constexpr):
    """The scores, or tanh(scores * inside_factor) * cap, and that tanh."""
    if SOFTCAP:
        bent = tanh(scores * inside_factor)
        return bent * cap, bent
    else:
        return scores, scores


@triton.jit
def seen(positions, keys, k_length, window, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr):
    """Whether the query at a position (down) sees a key (across)."""
    inside = tl.broadcast_to((keys < k_length)[None, :], (positions.shape[0], keys.shape[0]))
    if CAUSAL:
        inside = inside & (keys[None, :] <= positions[:, None])
    if WINDOWED:
        inside = inside & (keys[None, :] > positions[:, None] - window)
        if not CAUSAL:
            inside = inside & (keys[None, :] < positions[:, None] + window)
    return inside


@triton.jit
def key_range(first, last, k_length, window, BLOCK: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr):
    """Blocks of keys that queries at positions first..last see: (start, full_start, full_end, end).

    Between full_start and full_end every query sees every key of a block; elsewhere a mask is needed."""
    start, full_start = 0, 0
    end, full_end = k_length, k_length
    if CAUSAL:
        end, full_end = min(k_length, last + 1), min(k_length, first + 1)
    elif WINDOWED:
        end, full_end = min(k_length, last + window), min(k_length, first + window)
    if WINDOWED:
        start, full_start = max(0, first - window + 1), max(0, last - window + 1)
    start_block = start // BLOCK
    end_block = max(tl.cdiv(end, BLOCK), start_block)
    full_start_block = min(tl.cdiv(full_start, BLOCK), end_block)
    full_end_block = max(full_end // BLOCK, full_start_block)
    return start_block, full_start_block, full_end_block, end_block


@triton.jit
def query_range(
    first_key, last_key, offset, q_length, window, BLOCK: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr
):
    """Blocks of queries that see keys first..last, as `key_range` has it; query i stands at position offset + i."""
    start, full_start = 0, 0
    end, full_end = q_length, q_length
    if CAUSAL:
        start, full_start = max(0, first_key - offset), max(0, last_key - offset)
    elif WINDOWED:
        start, full_start = max(0, first_key - window + 1 - offset), max(0, last_key - window + 1 - offset)
    if WINDOWED:
        end, full_end = min(q_length, last_key + window - offset), min(q_length, first_key + window - offset)
    start_block = start // BLOCK
    end_block = max(tl.cdiv(end, BLOCK), start_block)
    full_start_block = min(tl.cdiv(full_start, BLOCK), end_block)
    full_end_block = max(full_end // BLOCK, full_start_block)
    return start_block, full_start_block, full_end_block, end_block


@triton.jit
def key_rows(keys, k_start, pages_ptr, page_size, inside, PAGED: tl.constexpr):
    """In which row of memory a logical key lies."""
    if PAGED:
        page = tl.load(pages_ptr + keys // page_size, mask=inside, other=0).to(tl.int64)
        return page * page_size + keys % page_size
    else:
        return k_start + keys.to(tl.int64)


@triton.jit
def load_rows(
    ptr, offsets, inside, HEAD: tl.constexpr, PADDED: tl.constexpr, MASKED: tl.constexpr, ALIGNED: tl.constexpr
):
    """Rows of HEAD elements that start at the given offsets, zeros up to PADDED.

    ALIGNED: every row starts at a multiple of 16 bytes and of 8 elements. What all rows share belongs into `ptr`: there
    it is one number, in the offsets one a row, and registers are what attention is short of."""
    columns = tl.arange(0, PADDED)
    if ALIGNED:
        # A multiple of 8 in a form that the compiler can see.
        pointers = tl.multiple_of(ptr + (offsets // 8 * 8)[:, None] + columns[None, :], (16, 16))
    else:
        pointers = ptr + offsets[:, None] + columns[None, :]
    if MASKED and HEAD == PADDED:
        return tl.load(pointers, mask=inside[:, None], other=0.0)
    elif MASKED:
        return tl.load(pointers, mask=inside[:, None] & (columns < HEAD)[None, :], other=0.0)
    elif HEAD != PADDED:
        return tl.load(pointers, mask=(columns < HEAD)[None, :], other=0.0)
    else:
        return tl.load(pointers)


@triton.jit
def store_rows(ptr, offsets, inside, values, HEAD: tl.constexpr, PADDED: tl.constexpr):
    """Rows of HEAD elements to where they start, rounded to the format that is stored.

    What is stored to is made by the launch and begins where memory does: rows of a multiple of 8 elements are stored 16
    bytes at a time, which must be said, else it is two."""
    columns = tl.arange(0, PADDED)
    if HEAD % 8 == 0:
        pointers = tl.multiple_of(ptr + (offsets // 8 * 8)[:, None] + columns[None, :], (16, 16))
    else:
        pointers = ptr + offsets[:, None] + columns[None, :]
    if HEAD == PADDED:
        tl.store(pointers, values.to(ptr.dtype.element_ty), mask=inside[:, None])
    else:
        tl.store(pointers, values.to(ptr.dtype.element_ty), mask=inside[:, None] & (columns < HEAD)[None, :])


@triton.jit
def not_finite(values):
    return ~(tl.abs(values.to(tl.float32)) < float("inf"))


@triton.jit
def any_of(truths):
    return tl.max(tl.max(truths.to(tl.int32), 1), 0) > 0


@triton.jit
def add_what_is_not_finite(accumulator, weights, sees, values, COUNT: tl.constexpr):
    """Infinities and NaNs among COUNT rows of values, one by one, to the rows that see them: 0 * NaN must reach nobody
    else. `weights` and `sees` have a column for each row of values."""
    wrong = not_finite(values)
    if any_of(wrong):
        numbers = tl.arange(0, COUNT)
        for number in range(COUNT):
            # One of the terms is not zero, so these sums have no order.
            weight = tl.sum(tl.where((numbers == number)[None, :], weights, 0.0), 1)
            value = tl.sum(tl.where((numbers == number)[:, None] & wrong, values.to(tl.float32), 0.0), 0)
            seen_here = tl.max(((numbers == number)[None, :] & sees).to(tl.int32), 1) > 0
            reached = seen_here[:, None] & not_finite(value)[None, :]
            accumulator = tl.where(reached, accumulator + weight[:, None] * value[None, :], accumulator)
    return accumulator


@triton.jit
def add_product(accumulator, weights, sees, values, COUNT: tl.constexpr, CAREFUL: tl.constexpr):
    """accumulator + weights @ values. CAREFUL: values that are not finite reach only the rows that see them."""
    if CAREFUL:
        clean = tl.where(not_finite(values), tl.zeros_like(values), values)
        accumulator = tl.dot(weights, clean, accumulator, input_precision="ieee", out_dtype=tl.float32)
        return add_what_is_not_finite(accumulator, weights.to(tl.float32), sees, values, COUNT)
    else:
        return tl.dot(weights, values, accumulator, input_precision="ieee", out_dtype=tl.float32)


def aligned(*tensors: Tensor) -> bool:
    """Whether every row of a head starts at a multiple of 16 bytes and of 8 elements."""
    return all(x.data_ptr() % 16 == 0 and x.stride(0) % 8 == 0 and x.stride(1) % 8 == 0 for x in tensors)


def describable(*tensors: Tensor) -> bool:
    """Whether the tensor memory accelerator can take blocks of one head: heads side by side, a power of two wide, 16 at
    least: narrower ones are padded with zeros for the matrix units."""
    heads = [x.shape[2] for x in tensors]
    side_by_side = all(x.stride(1) == head for x, head in zip(tensors, heads, strict=True))
    return aligned(*tensors) and side_by_side and all(head >= 16 and head & (head - 1) == 0 for head in heads)


def describe(x_THD: Tensor, block: int) -> Described:
    tokens, heads, head = x_THD.shape
    return Described(x_THD, [tokens, heads * head], [x_THD.stride(0), 1], [block, head])
