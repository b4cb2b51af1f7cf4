"""Launches of selected log-probabilities by Triton on Hopper: the choice of a tile, memory for statistics, the grid.

Knows nothing of autograd, validation or empty tensors; the public function does. Rows of a tile, warps, stages and
loads decide speed alone; the kernels are in triton_logits.py and triton_statistics.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from samebits.ops._triton.device import on_device
from samebits.ops._triton.forced import forced_launch
from samebits.ops._triton.launch import run
from samebits.ops._triton.sizes import cdiv
from samebits.ops.logprob.reference import BLOCK
from samebits.ops.logprob.triton_logits import logprob_addressed, logprob_described
from samebits.ops.logprob.triton_statistics import logprob_known, merge_blocks
from samebits.ops.matmul.triton_kernel import contiguous_axis, describe, described_layout, programs_for

# M rows, V the vocabulary or a chunk of it, K the chain.


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
    parts, blocks = Parts.of(ids_M, ignore_index, vocabulary), cdiv(vocabulary, BLOCK)
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
            cdiv(rows, MERGED_ROWS),
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
    launch = (
        launch
        or forced_launch(VocabularyLaunch, described=described)
        or select(m, float32=hidden.dtype == torch.float32, described=described)
    )
    if launch.loads == "tma" and not described:
        raise ValueError(f"selected_logprob: {launch} takes 16-bit operands in rows aligned to 16 bytes only")
    tiles = cdiv(m, launch.tile_m) * cdiv(v, BLOCK)
    if launch.loads == "tma":
        programs = programs_for(tiles, launch.programs_per_sm, hidden.device)
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
            FLATTEN=launch.programs_per_sm > 0,
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
