"""Log-probabilities of selected tokens by Triton on Hopper: a product whose tiles of logits never leave the chip.

Forward: a tile of 256 columns is one vocabulary block; it leaves its largest logit, its folded sum and, where it holds
a row's token, that token's logit. A second kernel merges the blocks, ascending. Backward: the tile becomes dz and is
stored in the storage dtype. Knows nothing of autograd, validation or empty tensors; the public function does. Rows of a
tile, warps, stages and loads decide speed alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from samebits.native.launch_numbers import forced
from samebits.numerics.elementary.triton_generated import exp, log
from samebits.ops._triton.device import on_device
from samebits.ops._triton.launch import run
from samebits.ops._triton.rows import fold_by_halves
from samebits.ops.logprob.reference import BLOCK
from samebits.ops.matmul.triton_kernel import (
    addressed_step,
    contiguous_axis,
    describe,
    described_layout,
    multiprocessors,
    store_described,
    tile_at,
)

# M rows, V the vocabulary or a chunk of it, K the chain. BLOCK decides bits and is written 256 in the kernels.


@dataclass(frozen=True, kw_only=True, slots=True)
class VocabularyLaunch:
    """Decides speed, never bits. A tile always has 256 columns."""

    tile_m: int
    tile_k: int
    warps: int
    stages: int
    loads: Literal["tma", "pointer"] = "tma"
    programs_per_sm: int = 0
    """Programs that stay on a multiprocessor and walk over tiles; 0: one program a tile."""
    group: int = 32
    """Tile rows that run side by side, so that they meet the weight in the cache."""


MANY_ROWS: Final = VocabularyLaunch(tile_m=128, tile_k=64, warps=8, stages=3, programs_per_sm=1)
FEW_ROWS: Final = VocabularyLaunch(tile_m=64, tile_k=64, warps=4, stages=3)
# 16-bit operands whose base or strides the tensor memory accelerator cannot take.
UNALIGNED: Final = VocabularyLaunch(tile_m=64, tile_k=32, warps=8, stages=2, loads="pointer")
# float32: a loop of fused multiply-adds, never tf32.
FLOAT32: Final = VocabularyLaunch(tile_m=64, tile_k=16, warps=8, stages=3, loads="pointer")
FLOAT32_FEW_ROWS: Final = VocabularyLaunch(tile_m=16, tile_k=32, warps=8, stages=3, loads="pointer")
TABLE: Final[dict[str, tuple[VocabularyLaunch, ...]]] = {
    "bfloat16": (MANY_ROWS, FEW_ROWS, UNALIGNED),
    "float16": (MANY_ROWS, FEW_ROWS, UNALIGNED),
    "float32": (FLOAT32, FLOAT32_FEW_ROWS),
}
MERGED_ROWS: Final = 32


@triton.jit
def block_statistics(logits, rows, n, ids_ptr, maxima_ptr, sums_ptr, selected_ptr, M, V, TILE_M: tl.constexpr):
    """What one vocabulary block leaves of every row. Missing columns are -inf: they add nothing."""
    columns, inside = n + tl.arange(0, 256), rows < M
    minus_infinity = float("-inf")
    logits = tl.where((columns < V)[None, :], logits, minus_infinity)
    largest = tl.max(logits, 1)
    place = (n // 256).to(tl.int64) * M + rows
    tl.store(maxima_ptr + place, largest, mask=inside)
    ids = tl.load(ids_ptr + rows, mask=inside, other=-1)
    selected = tl.max(tl.where(columns[None, :] == ids[:, None], logits, minus_infinity), 1)
    tl.store(selected_ptr + rows, selected, mask=(ids >= n) & (ids < n + 256))
    # A block of -inf alone sums to 0: its logits are taken as they are, for -inf minus -inf is not a number.
    shift = tl.where(largest == minus_infinity, 0.0, largest)
    tl.store(sums_ptr + place, fold_by_halves(exp(logits - shift[:, None]), TILE_M), mask=inside)


@triton.jit
def gradient_of_logits(logits, rows, columns, ids_ptr, lse_ptr, g_ptr, M):
    """dz = g * ((v == id) - exp(z - lse)) in float32; +0 in ignored rows, whose id is -1."""
    inside = rows < M
    ids = tl.load(ids_ptr + rows, mask=inside, other=-1)
    lse = tl.load(lse_ptr + rows, mask=inside, other=0.0)
    g = tl.load(g_ptr + rows, mask=inside, other=0.0)
    own = tl.where(columns[None, :] == ids[:, None], 1.0, 0.0)
    dz = g[:, None] * (own - exp(logits - lse[:, None]))
    return tl.where((ids >= 0)[:, None], dz, 0.0)


@triton.jit(
    do_not_specialize=["M", "V", "K", "first", "programs"],
    do_not_specialize_on_alignment=["ids_ptr", "lse_ptr", "g_ptr", "maxima_ptr", "sums_ptr", "selected_ptr"],
)
def logprob_described(
    hidden,
    weight,
    dz,
    ids_ptr,
    lse_ptr,
    g_ptr,
    maxima_ptr,
    sums_ptr,
    selected_ptr,
    M: tl.int32,
    V: tl.int32,
    K: tl.int32,
    first: tl.int32,
    programs: tl.int32,
    TILE_M: tl.constexpr,
    TILE_K: tl.constexpr,
    GROUP: tl.constexpr,
    FLATTEN: tl.constexpr,
):
    """Operands come through the tensor memory accelerator, which fills what lies outside with +0."""
    tiles_m, tiles_n = tl.cdiv(M, TILE_M), tl.cdiv(V, 256)
    steps = tl.cdiv(K, TILE_K)
    # A second counter for what follows the chain: the loads of the next tile then depend on nothing that it uses.
    finished_tile = tl.program_id(0) - programs
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, programs, flatten=FLATTEN):
        tile_m, tile_n = tile_at(tile, tiles_m, tiles_n, GROUP)
        m, n = tile_m * TILE_M, tile_n * 256
        logits = tl.zeros((TILE_M, 256), dtype=tl.float32)
        for step in range(steps):
            k = step * TILE_K
            logits = tl.dot(
                hidden.load([m, k]), weight.load([n, k]).T, logits, input_precision="ieee", out_dtype=tl.float32
            )
        finished_tile += programs
        tile_m, tile_n = tile_at(finished_tile, tiles_m, tiles_n, GROUP)
        m, n = tile_m * TILE_M, tile_n * 256
        rows, columns = m + tl.arange(0, TILE_M), n + tl.arange(0, 256)
        if dz is None:
            block_statistics(logits, rows, n, ids_ptr, maxima_ptr, sums_ptr, selected_ptr, M, V, TILE_M)
        else:
            gradient = gradient_of_logits(logits, rows, first + columns, ids_ptr, lse_ptr, g_ptr, M)
            store_described(dz, gradient, m, n, TILE_M, 256, 2, False)


@triton.jit(
    do_not_specialize=["M", "V", "K", "first", "stride_hm", "stride_hk", "stride_wv", "stride_wk", "stride_dz"],
    do_not_specialize_on_alignment=[
        "hidden_ptr",
        "weight_ptr",
        "dz_ptr",
        "ids_ptr",
        "lse_ptr",
        "g_ptr",
        "maxima_ptr",
        "sums_ptr",
        "selected_ptr",
    ],
)
def logprob_addressed(
    hidden_ptr,
    weight_ptr,
    dz_ptr,
    ids_ptr,
    lse_ptr,
    g_ptr,
    maxima_ptr,
    sums_ptr,
    selected_ptr,
    M: tl.int32,
    V: tl.int32,
    K: tl.int32,
    first: tl.int32,
    stride_hm: tl.int64,
    stride_hk: tl.int64,
    stride_wv: tl.int64,
    stride_wk: tl.int64,
    stride_dz: tl.int64,
    HIDDEN_CONTIGUOUS: tl.constexpr,
    WEIGHT_CONTIGUOUS: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Operands of any strides, loaded through pointers."""
    tile_m, tile_n = tile_at(tl.program_id(0), tl.cdiv(M, TILE_M), tl.cdiv(V, 256), GROUP)
    rows, columns = tile_m * TILE_M + tl.arange(0, TILE_M), tile_n * 256 + tl.arange(0, 256)
    # Lines beyond the edge read line 0 again: nothing stores what they give, and the loads need no mask.
    hidden_lines, weight_lines = tl.where(rows < M, rows, 0), tl.where(columns < V, columns, 0)
    logits = tl.zeros((TILE_M, 256), dtype=tl.float32)
    whole = K // TILE_K * TILE_K
    for k in range(0, whole, TILE_K):
        logits = addressed_step(
            logits,
            hidden_ptr,
            weight_ptr,
            hidden_lines,
            weight_lines,
            k + tl.arange(0, TILE_K),
            stride_hm,
            stride_hk,
            stride_wk,
            stride_wv,
            K,
            HIDDEN_CONTIGUOUS,
            WEIGHT_CONTIGUOUS,
            False,
        )
    if whole < K:
        logits = addressed_step(
            logits,
            hidden_ptr,
            weight_ptr,
            hidden_lines,
            weight_lines,
            whole + tl.arange(0, TILE_K),
            stride_hm,
            stride_hk,
            stride_wk,
            stride_wv,
            K,
            HIDDEN_CONTIGUOUS,
            WEIGHT_CONTIGUOUS,
            True,
        )
    if dz_ptr is None:
        block_statistics(logits, rows, tile_n * 256, ids_ptr, maxima_ptr, sums_ptr, selected_ptr, M, V, TILE_M)
    else:
        gradient = gradient_of_logits(logits, rows, first + columns, ids_ptr, lse_ptr, g_ptr, M)
        offsets = rows[:, None].to(tl.int64) * stride_dz + columns[None, :]
        inside = (rows < M)[:, None] & (columns < V)[None, :]
        tl.store(dz_ptr + offsets, gradient.to(dz_ptr.dtype.element_ty), mask=inside)


@triton.jit(
    do_not_specialize=["M", "V", "blocks"],
    do_not_specialize_on_alignment=["logits_ptr", "ids_ptr", "maxima_ptr", "sums_ptr", "selected_ptr"],
)
def logprob_known(
    logits_ptr,
    ids_ptr,
    maxima_ptr,
    sums_ptr,
    selected_ptr,
    M: tl.int32,
    V: tl.int32,
    blocks: tl.int32,
    TILE_M: tl.constexpr,
):
    """Logits that are in memory already, a vocabulary block of some rows a program."""
    rows, n = tl.program_id(0) // blocks * TILE_M + tl.arange(0, TILE_M), tl.program_id(0) % blocks * 256
    columns = n + tl.arange(0, 256)
    inside = (rows < M)[:, None] & (columns < V)[None, :]
    offsets = rows[:, None].to(tl.int64) * V + columns[None, :]
    logits = tl.load(logits_ptr + offsets, mask=inside, other=0.0)
    block_statistics(logits, rows, n, ids_ptr, maxima_ptr, sums_ptr, selected_ptr, M, V, TILE_M)


@triton.jit(
    do_not_specialize=["M", "blocks"],
    do_not_specialize_on_alignment=["maxima_ptr", "sums_ptr", "selected_ptr", "ids_ptr", "logprob_ptr", "lse_ptr"],
)
def merge_blocks(
    maxima_ptr,
    sums_ptr,
    selected_ptr,
    ids_ptr,
    logprob_ptr,
    lse_ptr,
    M: tl.int32,
    blocks: tl.int32,
    ROWS: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """l = fma(l_b, exp(m_b - m), l), blocks ascending; (z - m) - log(l), and m + log(l)."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < M
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    for start in range(0, blocks, AHEAD):
        numbers = start + tl.arange(0, AHEAD)
        places = numbers[:, None].to(tl.int64) * M + rows[None, :]
        here = (numbers < blocks)[:, None] & inside[None, :]
        largest = tl.maximum(largest, tl.max(tl.load(maxima_ptr + places, mask=here, other=float("-inf")), 0))
    total, place = tl.zeros((ROWS,), dtype=tl.float32), rows.to(tl.int64)
    for start in range(0, blocks, AHEAD):
        # Unrolled, so that the loads of several blocks are under way at once; the chain itself is one step a block.
        for step in tl.static_range(AHEAD):
            here = inside & (start + step < blocks)
            of_block = tl.load(maxima_ptr + place, mask=here, other=0.0)
            added = tl.load(sums_ptr + place, mask=here, other=0.0)
            total = tl.where(here, tl.fma(added, exp(of_block - largest), total), total)
            place += M
    logarithm = log(total)
    ids = tl.load(ids_ptr + rows, mask=inside, other=-1)
    selected = tl.load(selected_ptr + rows, mask=inside, other=0.0)
    tl.store(logprob_ptr + rows, tl.where(ids >= 0, (selected - largest) - logarithm, 0.0), mask=inside)
    tl.store(lse_ptr + rows, largest + logarithm, mask=inside)


def forward(
    hidden_MK: Tensor, weight_VK: Tensor, ids_M: Tensor, ignore_index: int, *, launch: VocabularyLaunch | None = None
) -> tuple[Tensor, Tensor]:
    """(logprob, log-sum-exp) of every row."""
    parts = Parts.of(ids_M, ignore_index, weight_VK.shape[0])
    with on_device(hidden_MK):
        tensors = (parts.ids, None, None, parts.maxima, parts.sums, parts.selected)
        launch_tiles(hidden_MK, weight_VK, None, tensors, 0, launch)
        return parts.merged()


def of_logits(logits_MV: Tensor, ids_M: Tensor, ignore_index: int) -> Tensor:
    """The logprob of every row whose logits are known: the statistics of their blocks, merged as in `forward`."""
    rows, vocabulary = logits_MV.shape
    parts, blocks = Parts.of(ids_M, ignore_index, vocabulary), triton.cdiv(vocabulary, BLOCK)
    tensors = (parts.ids, parts.maxima, parts.sums, parts.selected)
    with on_device(logits_MV):
        run(logprob_known, rows * blocks, (logits_MV, *tensors, rows, vocabulary, blocks), warps=1, stages=1, TILE_M=1)
        return parts.merged()[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What the blocks of a vocabulary leave of every row, to be merged."""

    ids: Tensor
    maxima: Tensor
    sums: Tensor
    selected: Tensor

    @classmethod
    def of(cls, ids_M: Tensor, ignore_index: int, vocabulary: int) -> Parts:
        """Memory for them. A token that is nowhere in the vocabulary, which no one checks while a CUDA graph is
        captured, leaves NaN."""
        blocks, rows = -(-vocabulary // BLOCK), len(ids_M)
        return cls(
            ids=marked(ids_M, ignore_index),
            maxima=torch.empty(blocks, rows, device=ids_M.device),
            sums=torch.empty(blocks, rows, device=ids_M.device),
            selected=torch.full((rows,), torch.nan, device=ids_M.device),
        )

    def merged(self) -> tuple[Tensor, Tensor]:
        """(logprob, log-sum-exp) of every row."""
        blocks, rows = self.sums.shape
        logprob, lse = torch.empty_like(self.selected), torch.empty_like(self.selected)
        run(
            merge_blocks,
            triton.cdiv(rows, MERGED_ROWS),
            (self.maxima, self.sums, self.selected, self.ids, logprob, lse, rows, blocks),
            warps=1,
            stages=1,
            ROWS=MERGED_ROWS,
            AHEAD=16,
        )
        return logprob, lse


def logit_gradient(
    dlogprob_M: Tensor,
    hidden_MK: Tensor,
    weight_CK: Tensor,
    ids_M: Tensor,
    lse_M: Tensor,
    ignore_index: int,
    first: int,
    dz_MC: Tensor,
    *,
    launch: VocabularyLaunch | None = None,
) -> None:
    """The gradient of the logits of columns `first`, `first` + 1, ..., whose weights are given, into dz."""
    tensors = (marked(ids_M, ignore_index), lse_M, dlogprob_M, None, None, None)
    with on_device(hidden_MK):
        launch_tiles(hidden_MK, weight_CK, dz_MC, tensors, first, launch)


def marked(ids_M: Tensor, ignore_index: int) -> Tensor:
    """Tokens as the kernels read them: int32, -1 where ignored."""
    return ids_M.masked_fill(ids_M == ignore_index, -1).int()


def forced_launch(described: bool) -> VocabularyLaunch | None:
    """The launch that a checker forces on every call that it can serve, as `matmul` has it."""
    launch = forced("launch")
    if isinstance(launch, VocabularyLaunch) and (described or launch.loads != "tma"):
        return launch
    return None


def select(rows: int, *, float32: bool, described: bool) -> VocabularyLaunch:
    """The row of the table for these operands."""
    if float32:
        return FLOAT32_FEW_ROWS if rows <= 16 else FLOAT32
    if not described:
        return UNALIGNED
    return FEW_ROWS if rows <= 64 else MANY_ROWS


def launch_tiles(
    hidden: Tensor,
    weight: Tensor,
    dz: Tensor | None,
    tensors: tuple[Tensor | None, ...],
    first: int,
    launch: VocabularyLaunch | None,
) -> None:
    """Every tile of the logits of hidden (M, K) and weight (V, K): to statistics, or to dz where it is given."""
    (m, k), v = hidden.shape, weight.shape[0]
    operands = [each for each in (hidden, weight, dz) if each is not None]
    described = hidden.dtype != torch.float32 and all(described_layout(each) is False for each in operands)
    launch = launch or forced_launch(described) or select(m, float32=hidden.dtype == torch.float32, described=described)
    if launch.loads == "tma" and not described:
        raise ValueError(f"selected_logprob: {launch} takes 16-bit operands in rows aligned to 16 bytes only")
    tiles = triton.cdiv(m, launch.tile_m) * triton.cdiv(v, BLOCK)
    if launch.loads == "tma":
        resident = launch.programs_per_sm and launch.programs_per_sm * multiprocessors(hidden.device)
        programs = min(tiles, resident) if resident else tiles
        left = describe(hidden, False, launch.tile_m, launch.tile_k)
        right = describe(weight, False, BLOCK, launch.tile_k)
        stored = None if dz is None else describe(dz, False, launch.tile_m, BLOCK // 2)
        run(
            logprob_described,
            programs,
            (left, right, stored, *tensors, m, v, k, first, programs),
            warps=launch.warps,
            stages=launch.stages,
            TILE_M=launch.tile_m,
            TILE_K=launch.tile_k,
            GROUP=launch.group,
            FLATTEN=resident > 0,
        )
        return
    strides = (*hidden.stride(), *weight.stride(), 0 if dz is None else dz.stride(0))
    run(
        logprob_addressed,
        tiles,
        (hidden, weight, dz, *tensors, m, v, k, first, *strides),
        warps=launch.warps,
        stages=launch.stages,
        HIDDEN_CONTIGUOUS=contiguous_axis(*hidden.stride()),
        WEIGHT_CONTIGUOUS=contiguous_axis(*weight.stride()),
        TILE_M=launch.tile_m,
        TILE_K=launch.tile_k,
        GROUP=launch.group,
    )
