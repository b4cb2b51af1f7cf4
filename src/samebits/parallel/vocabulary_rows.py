"""Log-probabilities of rows when a vocabulary is cut over ranks: block statistics, their merge, and gradients.

Every rank has the statistics of its own blocks of 256 words; they are gathered, and every rank merges all of them in
the order of one device. The gradient of hidden is a chain over the vocabulary that travels from rank to rank. Knows
neither autograd nor bad input; `vocabulary` does. Kernels are those of `ops.logprob`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from samebits.numerics.elementary import elementary
from samebits.numerics.fma import fma32
from samebits.ops._cpu import FORMATS, pointer, run
from samebits.ops.accumulation import Sums, resumed
from samebits.ops.logprob.gradients import ROW_MULTIPLE, SCRATCH_BYTES, kernel
from samebits.ops.logprob.reference import BLOCK
from samebits.parallel.collectives import TILE_ROWS, chain, gather
from samebits.parallel.world import Group

# M rows, R some of them, C the words of this rank, B blocks of words, K the width of hidden.


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistics:
    """What this rank's blocks leave of every row: largest logit and folded sum (B, M), and the logit of its token."""

    maxima: Tensor
    sums: Tensor
    selected: Tensor
    """Of every row whose token is here; what is in the others means nothing."""


def blocks_of(words: int) -> int:
    return -(-words // BLOCK)


def own_statistics(hidden_MK: Tensor, weight_CK: Tensor, own_M: Tensor, backend: str) -> Statistics:
    """own: a row's token counted from this rank's first word, -1 where it is another rank's or ignored."""
    rows, blocks = hidden_MK.shape[0], blocks_of(weight_CK.shape[0])
    maxima_BM, sums_BM = hidden_MK.new_empty(2, blocks, rows, dtype=torch.float32)
    selected_M = hidden_MK.new_zeros(rows, dtype=torch.float32)
    found = Statistics(maxima=maxima_BM, sums=sums_BM, selected=selected_M)
    if rows and blocks:
        of_backend = _statistics_cpu if backend == "cpu" else _statistics_triton
        of_backend(hidden_MK.contiguous(), weight_CK.contiguous(), own_M, found)
    return found


def _statistics_cpu(hidden_MK: Tensor, weight_CK: Tensor, own_M: Tensor, found: Statistics) -> None:
    """A panel of blocks at a time. The kernel merges a panel as if it were a vocabulary; only its parts are used."""
    (rows, depth), words = hidden_MK.shape, weight_CK.shape[0]
    width = max(SCRATCH_BYTES // (rows * 4 * BLOCK), 1) * BLOCK
    unused_M, tokens_M = torch.zeros(2, rows, dtype=torch.float32), torch.zeros(rows, dtype=torch.int64)
    for first in range(0, words, width):
        columns = min(width, words - first)
        kept_MC = torch.empty(rows, columns, dtype=torch.float32)
        parts_MB = torch.empty(2, rows, blocks_of(columns), dtype=torch.float32)
        run(
            "logprob_forward",
            "iqqqpppqpppp",
            FORMATS[hidden_MK.dtype],
            rows,
            columns,
            depth,
            *map(pointer, (hidden_MK, weight_CK[first:], tokens_M)),
            -1,
            *map(pointer, (kept_MC, parts_MB, unused_M[0], unused_M[1])),
        )
        blocks = slice(first // BLOCK, first // BLOCK + parts_MB.shape[2])
        found.maxima[blocks], found.sums[blocks] = parts_MB[0].T, parts_MB[1].T
        here = ((own_M >= first) & (own_M < first + columns)).nonzero()[:, 0]
        found.selected[here] = kept_MC[here, own_M[here] - first]


def _statistics_triton(hidden_MK: Tensor, weight_CK: Tensor, own_M: Tensor, found: Statistics) -> None:
    triton_kernel = kernel("triton", hidden_MK.device)
    outputs = (own_M.int(), None, None, found.maxima, found.sums, found.selected)
    with triton_kernel.on_device(hidden_MK):
        triton_kernel.launch_tiles(hidden_MK, weight_CK, None, outputs, 0, None)


def gathered_statistics(own: Statistics, owner_M: Tensor, cuts: Sequence[int], group: Group) -> Statistics:
    """All ranks' blocks, ascending, and every row's selected logit from the rank that has it. One exchange."""
    rows = own.selected.shape[0]
    counts = [blocks_of(end - start) for start, end in pairwise(cuts)]
    places = [0]
    for blocks in counts:
        places.append(places[-1] + rows * (2 * blocks + 1))
    flat = own.selected.new_empty(places[-1])
    flat[places[group.place] : places[group.place + 1]] = torch.cat(
        [own.maxima.reshape(-1), own.sums.reshape(-1), own.selected]
    )
    gather(group, flat, places, "vocabulary statistics")
    pieces = [
        flat[start:end].view(2 * blocks + 1, rows)
        for blocks, (start, end) in zip(counts, pairwise(places), strict=True)
    ]
    selected_PM = torch.stack([piece[-1] for piece in pieces])
    return Statistics(
        maxima=torch.cat([piece[:blocks] for piece, blocks in zip(pieces, counts, strict=True)]),
        sums=torch.cat([piece[blocks:-1] for piece, blocks in zip(pieces, counts, strict=True)]),
        selected=selected_PM.gather(0, owner_M[None])[0],
    )


def merged(whole: Statistics, ignored_M: Tensor, backend: str) -> tuple[Tensor, Tensor]:
    """(logprob, log-sum-exp) of every row: (z - m) - log(l), m + log(l); l = fma(l_b, exp(m_b - m), l) over blocks."""
    if whole.selected.shape[0] == 0:
        return whole.selected, whole.selected.clone()
    return _merged_cpu(whole, ignored_M) if backend == "cpu" else _merged_triton(whole, ignored_M)


def _merged_cpu(whole: Statistics, ignored_M: Tensor) -> tuple[Tensor, Tensor]:
    maxima_BM, sums_BM, selected_M = (each.numpy() for each in (whole.maxima, whole.sums, whole.selected))
    most_M = np.full(selected_M.shape, -np.inf, np.float32)
    for maximum_M in maxima_BM:
        most_M = np.where(maximum_M > most_M, maximum_M, most_M)
    # Infinities, and what comes of them, are data like any other.
    with np.errstate(invalid="ignore", over="ignore"):
        scale_BM = elementary("exp", maxima_BM - most_M)
        total_M = np.zeros_like(most_M)
        for sum_M, scale_M in zip(sums_BM, scale_BM, strict=True):
            total_M = fma32(sum_M, scale_M, total_M)
        logarithm_M = elementary("log", total_M)
        logprob_M, lse_M = (selected_M - most_M) - logarithm_M, most_M + logarithm_M
    logprob_M[ignored_M.numpy()] = 0.0
    return torch.from_numpy(logprob_M), torch.from_numpy(lse_M)


def _merged_triton(whole: Statistics, ignored_M: Tensor) -> tuple[Tensor, Tensor]:
    triton_kernel = kernel("triton", whole.selected.device)
    blocks, rows = whole.maxima.shape
    logprob_M, lse_M = torch.empty_like(whole.selected), torch.empty_like(whole.selected)
    # The kernel looks at tokens only to tell ignored rows, which are -1.
    tokens_M = torch.where(ignored_M, -1, 0).int()
    tensors = (whole.maxima, whole.sums, whole.selected, tokens_M, logprob_M, lse_M)
    with triton_kernel.on_device(whole.selected):
        triton_kernel.run(
            triton_kernel.merge_blocks,
            -(-rows // triton_kernel.MERGED_ROWS),
            (*tensors, rows, blocks),
            warps=1,
            stages=1,
            ROWS=triton_kernel.MERGED_ROWS,
            AHEAD=16,
        )
    return logprob_M, lse_M


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Rows with their tokens and log-sum-exp as the forward pass saw them, and this rank's words of the weight."""

    hidden: Tensor
    weight: Tensor
    ids: Tensor
    lse: Tensor
    ignore_index: int
    cuts: Sequence[int]
    group: Group
    backend: str

    def gradients(
        self, dlogprob_M: Tensor, *, wants_hidden: bool, sums_CK: Sums | None, upstream: Tensor | None = None
    ) -> Tensor | None:
        """That of hidden, its chain times `upstream` where given, then rounded. The weight's is resumed in `sums_CK`.

        Panels of rows, as high on every rank: the chain over rows is left at their borders, and dz exists for one."""
        hidden_MK, weight_CK, dlogprob_M = self.hidden.contiguous(), self.weight.contiguous(), dlogprob_M.contiguous()
        weighted_MK = hidden_MK.masked_fill((self.ids == self.ignore_index)[:, None], 0.0)
        dhidden_MK = torch.empty_like(hidden_MK) if wants_hidden else None

        def finish(sum_TK: Tensor) -> Tensor:
            return (sum_TK if upstream is None else sum_TK * upstream).to(hidden_MK.dtype)

        height = self._panel()
        for start in range(0, len(hidden_MK), height):
            some = slice(start, min(start + height, len(hidden_MK)))
            dz_RC = self._logit_gradient(dlogprob_M[some], hidden_MK[some], weight_CK, some)
            if sums_CK is not None:
                weighted_RK = weighted_MK[some]
                for sum_CK, rows in resumed(sums_CK, len(hidden_MK), some.start, some.stop):
                    torch.ops.samebits.gemm_accumulate_(sum_CK, dz_RC[rows].T, weighted_RK[rows], self.backend)
            if dhidden_MK is not None:
                dhidden_MK[some] = self._travelling(dz_RC, weight_CK, finish)
        return dhidden_MK

    def _panel(self) -> int:
        """Rows whose dz fits into the scratch memory on the rank with most words; whole tiles of what travels."""
        widest = max(end - start for start, end in pairwise(self.cuts))
        fitting = SCRATCH_BYTES // (widest * self.hidden.element_size())
        return max(fitting // TILE_ROWS, 1) * TILE_ROWS

    def _logit_gradient(self, dlogprob_R: Tensor, hidden_RK: Tensor, weight_CK: Tensor, some: slice) -> Tensor:
        rows, words = len(hidden_RK), len(weight_CK)
        dz_RC = hidden_RK.new_empty(rows, -(-words // ROW_MULTIPLE) * ROW_MULTIPLE)[:, :words]
        if words:
            first = self.cuts[self.group.place]
            kernel(self.backend, hidden_RK.device).logit_gradient(
                dlogprob_R, hidden_RK, weight_CK, self.ids[some], self.lse[some], self.ignore_index, first, dz_RC
            )
        return dz_RC

    def _travelling(self, dz_RC: Tensor, weight_CK: Tensor, finish: Callable[[Tensor], Tensor]) -> Tensor:
        """dz weight, a chain over all ranks' words."""

        def add(tile: slice, sum_TK: Tensor) -> None:
            torch.ops.samebits.gemm_accumulate_(sum_TK, dz_RC[tile], weight_CK, self.backend)

        shape = (dz_RC.shape[0], weight_CK.shape[1])
        return chain(self.group, shape, add, finish, self.hidden, "vocabulary hidden gradient")


def statistics_of_logits(logits_MC: Tensor, own_M: Tensor) -> Statistics:
    """The same as `own_statistics` where the logits (float32, on the CPU) are known, by their definition in numpy."""
    rows, words = logits_MC.shape
    padded = np.full((rows, blocks_of(words) * BLOCK), -np.inf, np.float32)
    padded[:, :words] = logits_MC.numpy()
    z_MBL = padded.reshape(rows, blocks_of(words), BLOCK)
    # A NaN shows in the sum. A block of -inf alone sums to 0: -inf minus -inf is not a number.
    with np.errstate(invalid="ignore", over="ignore"):
        largest_MB = np.fmax.reduce(z_MBL, axis=2, initial=np.float32(-np.inf))
        shift_MB = np.where(np.isneginf(largest_MB), np.float32(0), largest_MB)
        sums_MBL = elementary("exp", z_MBL - shift_MB[..., None])
        half = BLOCK // 2
        while half:
            sums_MBL = sums_MBL[..., :half] + sums_MBL[..., half : 2 * half]
            half //= 2
    here = (own_M >= 0).nonzero()[:, 0]
    selected_M = logits_MC.new_zeros(rows)
    selected_M[here] = logits_MC[here, own_M[here]]
    maxima_BM, sums_BM = (torch.from_numpy(np.ascontiguousarray(each.T)) for each in (largest_MB, sums_MBL[..., 0]))
    return Statistics(maxima=maxima_BM, sums=sums_BM, selected=selected_M)
