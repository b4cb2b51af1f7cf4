"""A vocabulary over ranks in Megatron's signatures: `VocabParallelEmbedding`, `vocab_parallel_cross_entropy`.

Words are cut at multiples of 256 unless cuts are given, not in equal parts. What Megatron offers and these do not keep
is refused, not ignored. Knows no model; `vocabulary` has the functions that take hidden states instead of logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Self

import torch
from torch import Tensor, nn

from samebits.ops.arguments import DTYPES, check_equal, short
from samebits.ops.logprob import check_vocabulary, cpu_kernel
from samebits.parallel.linear import rows_of
from samebits.parallel.linear_modules import Drawing, checked_cuts, drawn, refuse, settings_of
from samebits.parallel.vocabulary import check_blocks, cuts_of, embedding, owners, vocabulary_cuts
from samebits.parallel.vocabulary_rows import gathered_statistics, merged, statistics_of_logits
from samebits.parallel.world import Group

# No target is ignored: a number that no target can be.
NO_TARGET: Final = torch.iinfo(torch.int64).min


class VocabParallelEmbedding(nn.Module):
    """Rows of a table by number, the table cut over ranks; ids and results are the same on every rank."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        init_method: Drawing | None = None,
        reduce_scatter_embeddings: bool = False,
        config: Any = None,
        group: Group,
        cuts: Sequence[int] | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        initialize: bool = True,
    ) -> None:
        super().__init__()
        name = "VocabParallelEmbedding"
        refuse(name, {"reduce_scatter_embeddings": (reduce_scatter_embeddings, False)})
        settings = settings_of(name, config, dtype, initialize)
        cuts = vocabulary_cuts(num_embeddings, group.size) if cuts is None else cuts
        self.cuts, self.group, self.fused = checked_cuts(name, num_embeddings, cuts, group), group, settings.fused
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.vocab_start_index, self.vocab_end_index = self.cuts[group.place], self.cuts[group.place + 1]
        self.num_embeddings_per_partition = self.vocab_end_index - self.vocab_start_index
        shape = (self.num_embeddings_per_partition, embedding_dim)
        self.weight = nn.Parameter(torch.empty(shape, dtype=settings.dtype, device=device))
        if settings.initialize:
            self._fill(drawn((num_embeddings, embedding_dim), init_method or nn.init.normal_, group, device))

    def _fill(self, weight: Tensor) -> None:
        with torch.no_grad():
            self.weight.copy_(weight[self.vocab_start_index : self.vocab_end_index])

    @classmethod
    def from_whole(cls, weight: Tensor, group: Group, **options: Any) -> Self:
        """This rank's piece of a table of one device."""
        table = cls(*weight.shape, group=group, dtype=weight.dtype, device=weight.device, initialize=False, **options)
        table._fill(weight)
        return table

    def forward(self, input_: Tensor) -> Tensor:
        sums = getattr(self.weight, "main_grad", None) if self.fused else None
        if self.fused and sums is None:
            raise ValueError(
                "VocabParallelEmbedding: gradient_accumulation_fusion is True, weight.main_grad is None;"
                " allowed: a float32 tensor like the weight"
            )
        return embedding(input_, self.weight, self.vocab_start_index, self.group, sums=sums, cuts=self.cuts)


def vocab_parallel_cross_entropy(
    vocab_parallel_logits: Tensor,
    target: Tensor,
    label_smoothing: float = 0.0,
    *,
    group: Group,
    cuts: Sequence[int] | None = None,
) -> Tensor:
    """-log softmax(logits) at target (...), float32, of logits (..., words of this rank); on the CPU.

    As `ops.linear_cross_entropy` with reduction='none' gives it where it makes these logits itself. Without `cuts` the
    ranks are asked how many words they have, one exchange more."""
    name, logits = "vocab_parallel_cross_entropy", vocab_parallel_logits
    refuse(name, {"label_smoothing": (label_smoothing, 0.0)})
    if logits.device.type != "cpu" or logits.dtype not in DTYPES:
        raise ValueError(
            f"{name}: logits are {short(logits.dtype)} on {logits.device}; allowed: {', '.join(map(short, DTYPES))}"
            f" on cpu; elsewhere parallel.vocabulary.linear_cross_entropy, which makes them itself"
        )
    if target.shape != logits.shape[:-1] or target.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"{name}: target has shape {tuple(target.shape)} {short(target.dtype)}, logits {tuple(logits.shape)};"
            f" allowed: int64 or int32 in logits' shape without the last axis"
        )
    cuts = cuts_of(logits.shape[-1], group) if cuts is None else cuts
    check_blocks(name, checked_cuts(name, cuts[-1], cuts, group))
    own = cuts[group.place + 1] - cuts[group.place]
    check_equal(name, "the last axis of logits", logits.shape[-1], "the piece between this rank's cuts", own)
    target_M = target.reshape(-1).long()
    check_vocabulary(name, target_M, NO_TARGET, cuts[-1])
    loss_M: Tensor = _CrossEntropy.apply(rows_of(logits), target_M, tuple(cuts), group)  # type: ignore[no-untyped-call]
    return loss_M.reshape(target.shape)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_MC: Tensor, target_M: Tensor, cuts: tuple[int, ...], group: Group) -> Tensor:
        owner_M, own_M = owners(target_M, cuts), target_M - cuts[group.place]
        here = torch.where(owner_M == group.place, own_M, -1)
        own = statistics_of_logits(logits_MC.float(), here)
        nothing = torch.zeros_like(target_M, dtype=torch.bool)
        logprob_M, lse_M = merged(gathered_statistics(own, owner_M, cuts, group), nothing, "cpu")
        ctx.save_for_backward(logits_MC, own_M, lse_M)
        return 0.0 - logprob_M

    @staticmethod
    def backward(ctx: Any, dloss_M: Tensor) -> tuple[Tensor | None, ...]:
        logits_MC, own_M, lse_M = ctx.saved_tensors
        if not logits_MC.numel():
            return torch.zeros_like(logits_MC), None, None, None
        # The kernel writes dz over the logits, which are the caller's.
        copied_MC = logits_MC.to(torch.float32, copy=True).contiguous()
        dz_MC = cpu_kernel.logit_gradient_in_place(
            -dloss_M.contiguous(), copied_MC, own_M, lse_M, NO_TARGET, logits_MC.dtype
        )
        return dz_MC.contiguous(), None, None, None
