"""A vocabulary cut over ranks, with the bits of one device: embedding, head, log-probabilities, cross-entropy.

Words are cut at multiples of 256, where the blocks of a row's log-sum-exp begin; a rank may hold none. ids, hidden
states and what flows into results are the same on every rank by the caller's word; results are. Gradients of a weight
are those of this rank's words, returned or resumed in a float32 sum. Knows no module; `vocabulary_modules` does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from samebits import ops
from samebits.ops.accumulation import Spans, Sums, resumed
from samebits.ops.arguments import check_dimensions, check_equal, check_integer, check_tensors, choose_backend, short
from samebits.ops.cross_entropy import REDUCTIONS
from samebits.ops.cross_entropy.reference import factor_of, total_and_mean
from samebits.ops.embedding import NONE, embedding_gradient_
from samebits.ops.logprob import check_rows, check_vocabulary
from samebits.ops.logprob.reference import BLOCK
from samebits.ops.registering import call
from samebits.parallel.collectives import gather, gather_columns, stepped_cuts
from samebits.parallel.vocabulary_rows import Selection, gathered_statistics, merged, own_statistics
from samebits.parallel.world import Group

# M rows, V words, C those of this rank, K or H the width of hidden.


def vocabulary_cuts(vocabulary: int, parts: int) -> list[int]:
    """Where each part of a vocabulary begins, and its end: even in blocks of 256, of which the last may be short."""
    return stepped_cuts(vocabulary, parts, BLOCK)


def cuts_of(own: int, group: Group) -> list[int]:
    """The cuts of an axis of which every rank holds `own`, in the order of places: asked of the others."""
    sizes = torch.zeros(group.size, dtype=torch.int64)
    sizes[group.place] = own
    sizes = gather(group, sizes.to(group.world.device), range(group.size + 1), "sizes of pieces")
    return [0, *sizes.cumsum(0).tolist()]


def embedding(
    ids: Tensor,
    weight: Tensor,
    first: int,
    group: Group,
    *,
    sums: Sums | None = None,
    cuts: Sequence[int] | None = None,
) -> Tensor:
    """Row ids[...] of a table of which this rank holds the rows from `first` on: (..., H), copied bit for bit.

    `cuts` says where every rank's rows begin; without it they are asked, one exchange more. With `sums` (rows here, H)
    float32 the gradient is added there instead of being returned."""
    backend = choose_backend("embedding", weight, None)
    check_tensors("embedding", backend, {"weight": weight})
    check_dimensions("embedding", "weight", weight, 2)
    if ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"embedding: ids has dtype {short(ids.dtype)}; allowed: int64, int32")
    cuts = cuts_of(weight.shape[0], group) if cuts is None else cuts
    _check_piece("embedding", weight, cuts, group)
    check_equal("embedding", "first", first, "this rank's cut", cuts[group.place])
    ids_M = ids.reshape(-1).long()
    outside_M = (ids_M < 0) | (ids_M >= cuts[-1])
    if outside_M.any():
        position = int(outside_M.nonzero()[0])
        raise ValueError(
            f"embedding: id {int(ids_M[position])} at position {position}, the vocabulary is {cuts[-1]};"
            f" allowed: 0 to {cuts[-1] - 1}"
        )
    y_MH: Tensor = _Embedding.apply(ids_M, weight, tuple(cuts), group, sums, backend)  # type: ignore[no-untyped-call]
    return y_MH.reshape(*ids.shape, weight.shape[1])


def lm_head(hidden: Tensor, weight: Tensor, cuts: Sequence[int], group: Group) -> Tensor:
    """float32 logits (..., V) of all words, on every rank. Nothing is kept for a backward pass."""
    _check_piece("lm_head", weight, cuts, group)
    with torch.no_grad():
        own_MC = ops.lm_head(hidden.reshape(hidden.shape[:-1].numel(), hidden.shape[-1]), weight)
        widths = [end - start for start, end in pairwise(cuts)]
        return gather_columns(group, own_MC, widths, "logits").reshape(*hidden.shape[:-1], cuts[-1])


def selected_logprob(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    cuts: Sequence[int],
    group: Group,
    *,
    sums: Sums | None = None,
    ignore_index: int = -100,
) -> Tensor:
    """log softmax(hidden (..., K) weight (V, K)^T) at ids (...), float32, as `ops.selected_logprob` gives it.

    weight holds this rank's words. With `sums` its gradient is added to them (words here, K) instead of returned."""
    hidden_MK, ids_M, backend = _checked("selected_logprob", hidden, weight, "ids", ids, cuts, group, ignore_index)
    options = (tuple(cuts), group, ignore_index, backend)
    logprob_M: Tensor = _Logprob.apply(hidden_MK, weight, ids_M, sums, *options)  # type: ignore[no-untyped-call]
    return logprob_M.reshape(ids.shape)


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    cuts: Sequence[int],
    group: Group,
    *,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum", "none"] = "mean",
    denominator: float | None = None,
) -> Tensor:
    """-log softmax(hidden weight^T) at targets, float32: its mean, its sum, or every row's, as
    `ops.linear_cross_entropy`."""
    name = "linear_cross_entropy"
    hidden_MK, targets_M, backend = _checked(name, hidden, weight, "targets", targets, cuts, group, ignore_index)
    if reduction not in REDUCTIONS:
        raise ValueError(f"{name}: reduction is {reduction!r}; allowed: {', '.join(REDUCTIONS)}")
    if denominator is not None and (reduction != "mean" or not 0 < denominator < math.inf):
        raise ValueError(
            f"{name}: denominator is {denominator} with reduction={reduction!r};"
            f" allowed: finite and above 0, with 'mean'"
        )
    options = (tuple(cuts), group, ignore_index, backend)
    if reduction == "none":
        logprob_M: Tensor = _Logprob.apply(hidden_MK, weight, targets_M, None, *options)  # type: ignore[no-untyped-call]
        return 0.0 - logprob_M.reshape(targets.shape)
    factor = factor_of(targets_M, ignore_index, reduction, denominator, hidden.new_empty(0, dtype=torch.float32))
    loss: Tensor = _Reduced.apply(hidden_MK, weight, targets_M, factor, *options)  # type: ignore[no-untyped-call]
    return loss


def check_blocks(operator: str, cuts: Sequence[int]) -> None:
    """Whether a vocabulary is cut where its blocks begin: elsewhere a block's sum would be another one."""
    if any(cut % BLOCK and cut != cuts[-1] for cut in cuts):
        raise ValueError(f"{operator}: the cuts are {list(cuts)}; allowed: multiples of {BLOCK}, but for the end")


def owners(ids_M: Tensor, cuts: Sequence[int]) -> Tensor:
    """The place of the rank that holds each id; any place where an id is outside."""
    ends = torch.tensor(list(cuts[1:]), device=ids_M.device)
    return torch.searchsorted(ends, ids_M, right=True).clamp_(max=len(cuts) - 2)


def _check_piece(operator: str, weight: Tensor, cuts: Sequence[int], group: Group) -> None:
    if len(cuts) != group.size + 1 or list(cuts) != sorted(cuts) or cuts[0] != 0:
        raise ValueError(f"{operator}: the cuts are {list(cuts)}; allowed: {group.size + 1} ascending places from 0")
    own = cuts[group.place + 1] - cuts[group.place]
    check_equal(operator, "the first axis of weight", weight.shape[0], "the piece between this rank's cuts", own)


def _checked(
    operator: str,
    hidden: Tensor,
    weight: Tensor,
    tokens: str,
    ids: Tensor,
    cuts: Sequence[int],
    group: Group,
    ignore_index: int,
) -> tuple[Tensor, Tensor, str]:
    """Valid arguments as rows, and the backend."""
    check_dimensions(operator, "weight", weight, 2)
    # One device refuses a weight without words; here a rank may have none, and the rest is checked all the same.
    stand_in = weight if weight.shape[0] else weight.new_empty(1, weight.shape[1])
    hidden_MK, ids_M, backend = check_rows(operator, hidden, stand_in, tokens, ids, None)
    _check_piece(operator, weight, cuts, group)
    check_blocks(operator, cuts)
    check_integer(operator, "ignore_index", ignore_index)
    check_vocabulary(operator, ids_M, ignore_index, cuts[-1])
    return hidden_MK, ids_M, backend


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, ids_M: Tensor, weight: Tensor, cuts: tuple[int, ...], group: Group, sums: Sums | None, backend: str
    ) -> Tensor:
        owner_M = owners(ids_M, cuts)
        positions = [(owner_M == place).nonzero()[:, 0] for place in range(group.size)]
        own = ids_M[positions[group.place]] - cuts[group.place]
        parts = [weight.new_empty(len(each), weight.shape[1]) for each in positions]
        parts[group.place] = weight.index_select(0, own)
        others = [place for place in range(group.size) if place != group.place]
        group.exchange(
            "embedding rows",
            sends=[(parts[group.place], place) for place in others],
            receives=[(parts[place], place) for place in others],
        )
        ctx.save_for_backward(own, positions[group.place])
        ctx.words, ctx.sums, ctx.backend = weight.shape[0], sums, backend
        y_MH = weight.new_empty(len(ids_M), weight.shape[1])
        for each, part in zip(positions, parts, strict=True):
            y_MH.index_copy_(0, each, part)
        return y_MH

    @staticmethod
    def backward(ctx: Any, dy_MH: Tensor) -> tuple[Tensor | None, ...]:
        own, positions = ctx.saved_tensors
        # The positions ascend: a row's chain meets the same terms in the same order as on one device.
        dy = dy_MH.index_select(0, positions)
        if ctx.sums is not None:
            for part, some in resumed(_of_positions(ctx.sums, positions), len(own)):
                embedding_gradient_(part, own[some], dy[some], backend=ctx.backend)
            return None, None, None, None, None, None
        return None, call("embedding_dweight", dy, own, ctx.words, NONE, ctx.backend), None, None, None, None


def _of_positions(sums: Sums, positions: Tensor) -> Sums:
    """The sums of the rows at some ascending positions."""
    if isinstance(sums, Tensor):
        return sums
    cuts = torch.searchsorted(positions, torch.tensor(sums.cuts, device=positions.device))
    return Spans(sums.parts, tuple(cuts.tolist()))


def _rows(
    hidden_MK: Tensor,
    weight: Tensor,
    ids_M: Tensor,
    cuts: tuple[int, ...],
    group: Group,
    ignore_index: int,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """(logprob, log-sum-exp) of every row."""
    ignored_M, owner_M = ids_M == ignore_index, owners(ids_M, cuts)
    here_M = (owner_M == group.place) & ~ignored_M
    own_M = torch.where(here_M, ids_M - cuts[group.place], -1)
    own = own_statistics(hidden_MK, weight, own_M, backend)
    return merged(gathered_statistics(own, owner_M, cuts, group), ignored_M, backend)


class _Logprob(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_MK: Tensor, weight: Tensor, ids_M: Tensor, sums: Sums | None, *options: Any) -> Tensor:
        logprob_M, lse_M = _rows(hidden_MK, weight, ids_M, *options)
        ctx.save_for_backward(hidden_MK, weight, ids_M, lse_M)
        ctx.sums, ctx.options = sums, options
        return logprob_M

    @staticmethod
    def backward(ctx: Any, dlogprob_M: Tensor) -> tuple[Tensor | None, ...]:
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        hidden_MK, weight, ids_M, lse_M = ctx.saved_tensors
        selection = _selection(hidden_MK, weight, ids_M, lse_M, ctx.options)
        sums_CK = _fresh(weight) if ctx.sums is None and wants_weight else ctx.sums
        dhidden_MK = selection.gradients(dlogprob_M, wants_hidden=wants_hidden, sums_CK=sums_CK)
        returned = sums_CK.to(weight.dtype) if ctx.sums is None and wants_weight else None
        return dhidden_MK, returned, None, None, None, None, None, None


class _Reduced(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_MK: Tensor, weight: Tensor, targets_M: Tensor, factor: Tensor, *options: Any
    ) -> Tensor:
        logprob_M, lse_M = _rows(hidden_MK, weight, targets_M, *options)
        ctx.save_for_backward(hidden_MK, weight, targets_M, lse_M, factor)
        ctx.options = options
        return total_and_mean(0.0 - logprob_M, factor, options[-1])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        hidden_MK, weight, targets_M, lse_M, factor = ctx.saved_tensors
        selection = _selection(hidden_MK, weight, targets_M, lse_M, ctx.options)
        sum_CK = _fresh(weight) if wants_weight else None
        dhidden_MK = selection.gradients(
            (-factor).repeat(len(hidden_MK)), wants_hidden=wants_hidden, sums_CK=sum_CK, upstream=upstream
        )
        dweight = None if sum_CK is None else (sum_CK * upstream).to(weight.dtype)
        return dhidden_MK, dweight, None, None, None, None, None, None


def _selection(hidden_MK: Tensor, weight: Tensor, ids_M: Tensor, lse_M: Tensor, options: tuple[Any, ...]) -> Selection:
    cuts, group, ignore_index, backend = options
    return Selection(
        hidden=hidden_MK,
        weight=weight,
        ids=ids_M.contiguous(),
        lse=lse_M,
        ignore_index=ignore_index,
        cuts=cuts,
        group=group,
        backend=backend,
    )


def _fresh(weight: Tensor) -> Tensor:
    return torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
