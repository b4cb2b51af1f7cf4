"""Tiles of a matrix product by Triton: which one a program owns, how its operands are loaded, where its sums go.

Device functions, shared by all kernels that walk a chain over K; knows no kernel and no launch."""

from __future__ import annotations

import triton
import triton.language as tl

# Axes: M rows of a, N columns of b, K the chain.


@triton.jit
def tile_at(index, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Row and column of the index-th tile; GROUP tile rows run side by side so that they meet operands in the cache."""
    group_size = GROUP * tiles_n
    first = index // group_size * GROUP
    height = min(tiles_m - first, GROUP)
    within = index % group_size
    return first + within % height, within // height


@triton.jit
def offsets_of(rows, columns, M, N, TRANSPOSED: tl.constexpr):
    """Where a tile lies in a contiguous (M, N) matrix, or (N, M) when TRANSPOSED, and which part of it does."""
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    if TRANSPOSED:
        return columns[None, :].to(tl.int64) * M + rows[:, None], inside
    else:
        return rows[:, None].to(tl.int64) * N + columns[None, :], inside


@triton.jit
def start_of_chain(
    accumulator_ptr, rows, columns, M, N, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TRANSPOSED: tl.constexpr
):
    """The accumulator a chain starts from: +0, or what an earlier launch left."""
    if accumulator_ptr is None:
        return tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    else:
        offsets, inside = offsets_of(rows, columns, M, N, TRANSPOSED)
        return tl.load(accumulator_ptr + offsets, mask=inside, other=0.0)


@triton.jit
def add_bias(accumulator, bias_ptr, rows, columns, M, N, TRANSPOSED: tl.constexpr):
    """The accumulator plus the bias of its output column: one addition in float32."""
    if bias_ptr is None:
        return accumulator
    elif TRANSPOSED:
        return accumulator + tl.load(bias_ptr + rows, mask=rows < M, other=0.0).to(tl.float32)[:, None]
    else:
        return accumulator + tl.load(bias_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]


@triton.jit
def resume_described(
    out, m, n, TILE_M: tl.constexpr, TILE_N: tl.constexpr, PARTS: tl.constexpr, TRANSPOSED: tl.constexpr
):
    """The tile as an earlier launch left it in float32: what `store_described` stored."""
    if TRANSPOSED:
        return out.load([n, m]).T
    elif PARTS == 1:
        return out.load([m, n])
    else:
        halves = tl.join(out.load([m, n]), out.load([m, n + TILE_N // 2]))
        return tl.reshape(tl.permute(halves, (0, 2, 1)), (TILE_M, TILE_N))


@triton.jit
def store_described(
    out, accumulator, m, n, TILE_M: tl.constexpr, TILE_N: tl.constexpr, PARTS: tl.constexpr, TRANSPOSED: tl.constexpr
):
    """Round once and store through the tensor memory accelerator, in PARTS column parts to need less shared memory."""
    tl.static_assert(PARTS == 1 or (PARTS == 2 and not TRANSPOSED))
    if TRANSPOSED:
        out.store([n, m], accumulator.T.to(out.dtype))
    elif PARTS == 1:
        out.store([m, n], accumulator.to(out.dtype))
    else:
        halves = tl.permute(tl.reshape(accumulator, (TILE_M, 2, TILE_N // 2)), (0, 2, 1))
        left, right = tl.split(halves)
        out.store([m, n], left.to(out.dtype))
        out.store([m, n + TILE_N // 2], right.to(out.dtype))


@triton.jit
def load_lines(
    ptr, lines, ks, stride_line, stride_k, K, CONTIGUOUS: tl.constexpr, MASKED: tl.constexpr, MINUS_ZERO: tl.constexpr
):
    """A (lines, ks) tile; CONTIGUOUS names the axis of stride one, if any. Beyond K it holds +0, or -0."""
    line_offsets = lines.to(tl.int64) if CONTIGUOUS == "line" else lines.to(tl.int64) * stride_line
    k_offsets = ks.to(tl.int64) if CONTIGUOUS == "k" else ks.to(tl.int64) * stride_k
    pointers = ptr + line_offsets[:, None] + k_offsets[None, :]
    if not MASKED:
        return tl.load(pointers)
    elif not MINUS_ZERO:
        return tl.load(pointers, mask=(ks < K)[None, :], other=0.0)
    else:
        # A literal -0.0 would become +0.0 on its way into the compiler.
        minus_zero = tl.full((lines.shape[0], ks.shape[0]), -(2**31), tl.int32).to(tl.float32, bitcast=True)
        return tl.load(pointers, mask=(ks < K)[None, :], other=minus_zero)


@triton.jit
def addressed_step(
    accumulator,
    a_ptr,
    b_ptr,
    rows,
    columns,
    ks,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    K,
    A_CONTIGUOUS: tl.constexpr,
    B_CONTIGUOUS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """One step of the chain. In float32 a padded product is -0 * +0 = -0, which leaves an accumulator of -0 alone;
    the 16-bit units are fed +0, as the tensor memory accelerator feeds them."""
    FLOAT32: tl.constexpr = a_ptr.dtype.element_ty == tl.float32
    a_tile = load_lines(a_ptr, rows, ks, stride_am, stride_ak, K, A_CONTIGUOUS, MASKED, FLOAT32)
    b_tile = load_lines(b_ptr, columns, ks, stride_bn, stride_bk, K, B_CONTIGUOUS, MASKED, False)
    return tl.dot(a_tile, b_tile.T, accumulator, input_precision="ieee", out_dtype=tl.float32)
