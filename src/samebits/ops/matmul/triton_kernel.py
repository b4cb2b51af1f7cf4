"""Matrix product by Triton on Hopper: one chain over K, ascending, in float32, rounded once.

Knows nothing of autograd, validation or zero sizes; the public function does. A tile, its warps, its stages and the way
in which operands are loaded decide speed alone: an output belongs to one accumulator, which meets the products in order
of k."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from samebits.native.launch_numbers import forced
from samebits.ops._triton.device import on_device
from samebits.ops._triton.launch import Described, run
from samebits.ops.matmul.launch_table import Launch, select

# Axes: M rows of a, N columns of b, K the chain. In a kernel M and N may be swapped by the host (Launch.swap).


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


@triton.jit(do_not_specialize=["M", "N", "K", "programs"], do_not_specialize_on_alignment=["bias_ptr"])
def matmul_described(
    a,
    b,
    out,
    bias_ptr,
    M: tl.int32,
    N: tl.int32,
    K: tl.int32,
    programs: tl.int32,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    OUT_TRANSPOSED: tl.constexpr,
    RESUMED: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    GROUP: tl.constexpr,
    PARTS: tl.constexpr,
    FLATTEN: tl.constexpr,
):
    """Operands come through the tensor memory accelerator, which fills what lies outside with +0."""
    tiles_m, tiles_n = tl.cdiv(M, TILE_M), tl.cdiv(N, TILE_N)
    steps = tl.cdiv(K, TILE_K)
    # A second counter for the stores: the loads of the next tile then depend on nothing that the stores use.
    stored_tile = tl.program_id(0) - programs
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, programs, flatten=FLATTEN):
        tile_m, tile_n = tile_at(tile, tiles_m, tiles_n, GROUP)
        m, n = tile_m * TILE_M, tile_n * TILE_N
        if RESUMED:
            accumulator = resume_described(out, m, n, TILE_M, TILE_N, PARTS, OUT_TRANSPOSED)
        else:
            accumulator = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
        for step in range(steps):
            k = step * TILE_K
            a_tile = a.load([k, m]).T if A_TRANSPOSED else a.load([m, k])
            b_tile = b.load([n, k]).T if B_TRANSPOSED else b.load([k, n])
            accumulator = tl.dot(a_tile, b_tile, accumulator, input_precision="ieee", out_dtype=tl.float32)
        stored_tile += programs
        tile_m, tile_n = tile_at(stored_tile, tiles_m, tiles_n, GROUP)
        m, n = tile_m * TILE_M, tile_n * TILE_N
        rows, columns = m + tl.arange(0, TILE_M), n + tl.arange(0, TILE_N)
        accumulator = add_bias(accumulator, bias_ptr, rows, columns, M, N, OUT_TRANSPOSED)
        store_described(out, accumulator, m, n, TILE_M, TILE_N, PARTS, OUT_TRANSPOSED)


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


@triton.jit(
    do_not_specialize=["M", "N", "K", "stride_am", "stride_ak", "stride_bk", "stride_bn"],
    do_not_specialize_on_alignment=["a_ptr", "b_ptr", "out_ptr", "bias_ptr", "accumulator_ptr"],
)
def matmul_addressed(
    a_ptr,
    b_ptr,
    out_ptr,
    bias_ptr,
    accumulator_ptr,
    M: tl.int32,
    N: tl.int32,
    K: tl.int32,
    stride_am: tl.int64,
    stride_ak: tl.int64,
    stride_bk: tl.int64,
    stride_bn: tl.int64,
    A_CONTIGUOUS: tl.constexpr,
    B_CONTIGUOUS: tl.constexpr,
    OUT_TRANSPOSED: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Operands of any strides, loaded through pointers."""
    tile_m, tile_n = tile_at(tl.program_id(0), tl.cdiv(M, TILE_M), tl.cdiv(N, TILE_N), GROUP)
    rows, columns = tile_m * TILE_M + tl.arange(0, TILE_M), tile_n * TILE_N + tl.arange(0, TILE_N)
    # Lines beyond the edge read line 0 again: nothing stores what they give, and the loads need no mask.
    a_lines, b_lines = tl.where(rows < M, rows, 0), tl.where(columns < N, columns, 0)
    accumulator = start_of_chain(accumulator_ptr, rows, columns, M, N, TILE_M, TILE_N, OUT_TRANSPOSED)
    whole = K // TILE_K * TILE_K
    for first in range(0, whole, TILE_K):
        accumulator = addressed_step(
            accumulator,
            a_ptr,
            b_ptr,
            a_lines,
            b_lines,
            first + tl.arange(0, TILE_K),
            stride_am,
            stride_ak,
            stride_bk,
            stride_bn,
            K,
            A_CONTIGUOUS,
            B_CONTIGUOUS,
            False,
        )
    if whole < K:
        accumulator = addressed_step(
            accumulator,
            a_ptr,
            b_ptr,
            a_lines,
            b_lines,
            whole + tl.arange(0, TILE_K),
            stride_am,
            stride_ak,
            stride_bk,
            stride_bn,
            K,
            A_CONTIGUOUS,
            B_CONTIGUOUS,
            True,
        )
    offsets, inside = offsets_of(rows, columns, M, N, OUT_TRANSPOSED)
    if accumulator_ptr is None:
        accumulator = add_bias(accumulator, bias_ptr, rows, columns, M, N, OUT_TRANSPOSED)
        tl.store(out_ptr + offsets, accumulator.to(out_ptr.dtype.element_ty), mask=inside)
    else:
        tl.store(accumulator_ptr + offsets, accumulator, mask=inside)


def described_layout(x: Tensor) -> bool | None:
    """Whether the tensor memory accelerator would read x transposed; None when it cannot read x at all."""
    if x.data_ptr() % 16:
        return None
    (rows, columns), (row_stride, column_stride), unit = x.shape, x.stride(), 16 // x.element_size()
    if (column_stride == 1 or columns == 1) and (rows == 1 or (row_stride >= columns and row_stride % unit == 0)):
        return False
    if (row_stride == 1 or rows == 1) and (columns == 1 or (column_stride >= rows and column_stride % unit == 0)):
        return True
    return None


def described_layouts(a: Tensor, b: Tensor, out: Tensor) -> tuple[bool, bool] | None:
    """How it would read both operands; None when it cannot read them, or not write the result."""
    if a.dtype == torch.float32:
        return None
    a_transposed, b_transposed = described_layout(a), described_layout(b)
    if a_transposed is None or b_transposed is None or described_layout(out) is not False:
        return None
    return a_transposed, b_transposed


def describe(x: Tensor, transposed: bool, tile_rows: int, tile_columns: int) -> Described:
    """x, or its transpose, cut into tiles."""
    (rows, columns), (stride, other) = x.shape, x.stride()
    if transposed:
        rows, columns, stride, tile_rows, tile_columns = columns, rows, other, tile_columns, tile_rows
    # The stride of a single row is never used, but it must look aligned.
    return Described(x, [rows, columns], [stride if rows > 1 else -(-columns // 16) * 16, 1], [tile_rows, tile_columns])


def contiguous_axis(stride_line: int, stride_k: int) -> str:
    """The axis of stride one; the empty word when there is none."""
    return "k" if stride_k == 1 else "line" if stride_line == 1 else ""


NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


@functools.cache
def multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def gemm(
    a_MK: Tensor,
    b_KN: Tensor,
    *,
    bias_N: Tensor | None = None,
    accumulator_MN: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    launch: Launch | None = None,
) -> Tensor:
    """round(a b + bias), or the accumulator with a b added to it, in place. Any strides; all sizes at least one.

    The result is rounded to `out_dtype`, that of `a` when None."""
    (m, k), n = a_MK.shape, b_KN.shape[1]
    out = accumulator_MN if accumulator_MN is not None else a_MK.new_empty(m, n, dtype=out_dtype or a_MK.dtype)
    layouts = described_layouts(a_MK, b_KN, out)
    described = layouts is not None
    launch = launch or forced_launch(described)
    if launch is None:
        wide = out.dtype == torch.float32
        launch = select(m, n, k, dtype=NAMES[a_MK.dtype], described=described, wide=wide)
    bias = None if bias_N is None else bias_N.contiguous()
    with on_device(a_MK):
        if launch.loads == "pointer":
            launch_addressed(launch, a_MK, b_KN, out, bias, resumed=accumulator_MN is not None)
        elif layouts is None:
            raise ValueError(
                f"matmul: launch {launch} takes 16-bit operands in rows or columns aligned to 16 bytes only"
            )
        else:
            launch_described(launch, a_MK, b_KN, layouts, out, bias, resumed=accumulator_MN is not None)
    return out


def forced_launch(described: bool) -> Launch | None:
    """The launch that a checker forces on every call that it can serve.

    Within one operator some operands may be aligned as the tensor memory accelerator wants them, and others not."""
    launch = forced("launch")
    if isinstance(launch, Launch) and (described or launch.loads != "tma"):
        return launch
    return None


def launch_described(
    launch: Launch, a: Tensor, b: Tensor, layouts: tuple[bool, bool], out: Tensor, bias: Tensor | None, *, resumed: bool
) -> None:
    (m, k), n, (a_transposed, b_transposed) = a.shape, b.shape[1], layouts
    if launch.swap:
        # The transposed product: b.T times a.T, stored transposed.
        m, n = n, m
        left = describe(b, b_transposed, launch.tile_k, launch.tile_m)
        right = describe(a, a_transposed, launch.tile_n, launch.tile_k)
        a_transposed, b_transposed = not b_transposed, not a_transposed
        stored = describe(out, False, launch.tile_n, launch.tile_m)
    else:
        left = describe(a, a_transposed, launch.tile_m, launch.tile_k)
        right = describe(b, b_transposed, launch.tile_k, launch.tile_n)
        stored = describe(out, False, launch.tile_m, launch.tile_n // launch.parts)
    tiles = -(-m // launch.tile_m) * -(-n // launch.tile_n)
    resident = launch.programs_per_sm and launch.programs_per_sm * multiprocessors(out.device)
    programs = min(tiles, resident) if resident else tiles
    run(
        matmul_described,
        programs,
        (left, right, stored, bias, m, n, k, programs),
        warps=launch.warps,
        stages=launch.stages,
        A_TRANSPOSED=a_transposed,
        B_TRANSPOSED=b_transposed,
        OUT_TRANSPOSED=launch.swap,
        RESUMED=resumed,
        TILE_M=launch.tile_m,
        TILE_N=launch.tile_n,
        TILE_K=launch.tile_k,
        GROUP=launch.group,
        PARTS=launch.parts,
        # A resumed tile is loaded before its chain: two such tiles at once would not fit into shared memory.
        FLATTEN=resident > 0 and not resumed,
    )


def launch_addressed(launch: Launch, a: Tensor, b: Tensor, out: Tensor, bias: Tensor | None, *, resumed: bool) -> None:
    a, b = (b.T, a.T) if launch.swap else (a, b)
    (m, k), n = a.shape, b.shape[1]
    arguments = (
        a,
        b,
        None if resumed else out,
        bias,
        out if resumed else None,
        m,
        n,
        k,
        a.stride(0),
        a.stride(1),
        b.stride(0),
        b.stride(1),
    )
    run(
        matmul_addressed,
        triton.cdiv(m, launch.tile_m) * triton.cdiv(n, launch.tile_n),
        arguments,
        warps=launch.warps,
        stages=launch.stages,
        A_CONTIGUOUS=contiguous_axis(a.stride(0), a.stride(1)),
        B_CONTIGUOUS=contiguous_axis(b.stride(1), b.stride(0)),
        OUT_TRANSPOSED=launch.swap,
        TILE_M=launch.tile_m,
        TILE_N=launch.tile_n,
        TILE_K=launch.tile_k,
        GROUP=launch.group,
    )
