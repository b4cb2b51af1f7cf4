"""Planted kernels for the tracer: rows of x to rows of y, one program a row. Only `honest` may be accepted."""

import triton
import triton.language as tl


@triton.jit
def one_addition(low, high):
    return low + high


@triton.jit
def honest(x_ptr, y_ptr, M, H, BLOCK: tl.constexpr):
    """Each element plus half of itself."""
    columns = tl.arange(0, BLOCK)
    places = tl.program_id(0) * H + columns
    x = tl.load(x_ptr + places, mask=columns < H, other=0.0)
    tl.store(y_ptr + places, x + x * 0.5, mask=columns < H)


@triton.jit
def lanes_by_batch(x_ptr, y_ptr, M, H, BLOCK: tl.constexpr):
    """A sum in BLOCK lanes: its order is that of the block, and the block is chosen from the batch."""
    columns = tl.arange(0, BLOCK)
    lanes = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, H, BLOCK):
        inside = start + columns < H
        lanes += tl.load(x_ptr + tl.program_id(0) * H + start + columns, mask=inside, other=0.0)
    total = tl.reduce(tl.reshape(lanes, (2, BLOCK // 2)), 0, one_addition)
    for start in range(0, H, BLOCK // 2):
        places = start + tl.arange(0, BLOCK // 2)
        tl.store(y_ptr + tl.program_id(0) * H + places, total, mask=places < H)


def lanes_by_batch_block(m):
    return 64 if m == 1 else 32


@triton.jit
def double_store(x_ptr, y_ptr, M, H, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    places = tl.program_id(0) * H + columns
    x = tl.load(x_ptr + places, mask=columns < H, other=0.0)
    tl.store(y_ptr + places, x, mask=columns < H)
    tl.store(y_ptr + places, x * 2.0, mask=columns < H)


@triton.jit
def data_branch(x_ptr, y_ptr, M, H, BLOCK: tl.constexpr):
    """The first element of the row decides how the others are computed."""
    columns = tl.arange(0, BLOCK)
    places = tl.program_id(0) * H + columns
    x = tl.load(x_ptr + places, mask=columns < H, other=0.0)
    if tl.load(x_ptr + tl.program_id(0) * H) > 0.0:
        x = x * 2.0
    tl.store(y_ptr + places, x, mask=columns < H)


@triton.jit
def compiler_order(x_ptr, y_ptr, M, H, BLOCK: tl.constexpr):
    """tl.sum over a row: whose order the compiler chooses."""
    columns = tl.arange(0, BLOCK)
    places = tl.program_id(0) * H + columns
    x = tl.load(x_ptr + places, mask=columns < H, other=0.0)
    tl.store(y_ptr + places, x + tl.sum(x, 0), mask=columns < H)


@triton.jit
def neighbour_row(x_ptr, y_ptr, M, H, BLOCK: tl.constexpr):
    """Adds the first row of the batch to every row."""
    columns = tl.arange(0, BLOCK)
    places = tl.program_id(0) * H + columns
    x = tl.load(x_ptr + places, mask=columns < H, other=0.0)
    tl.store(y_ptr + places, x + tl.load(x_ptr + columns, mask=columns < H, other=0.0), mask=columns < H)


@triton.jit
def atomic_sum(x_ptr, y_ptr, M, H, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * H + columns, mask=columns < H, other=0.0)
    tl.atomic_add(y_ptr + tl.program_id(0) * H + columns, x, mask=columns < H)


@triton.jit
def beyond_the_end(x_ptr, y_ptr, M, H, BLOCK: tl.constexpr):
    """No mask: the last row reads and writes what is not its own."""
    places = tl.program_id(0) * H + tl.arange(0, BLOCK)
    tl.store(y_ptr + places, tl.load(x_ptr + places))
