"""A decoder over the ranks of a tensor-parallel group: which block of every weight a rank holds, and its products.

Forward and backward have the bits of one rank. In training what reads the residual stream is cut by outputs, what
writes into it by inputs, where a chain travels from rank to rank; for inference all is cut by outputs and gathered.
Attention is cut between groups of heads that share keys: a rank beyond their number holds none of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Final

import torch
from torch import Tensor

from samebits.model.config import ModelConfig
from samebits.model.weights import EMBEDDING, HEAD, shapes
from samebits.nn.strategy import Operators
from samebits.ops.accumulation import Sums
from samebits.ops.arguments import choose_backend
from samebits.parallel import linear, vocabulary
from samebits.parallel.collectives import even_cuts, gather_columns, stepped_cuts, widths_of
from samebits.parallel.head_norm import head_norms
from samebits.parallel.layout import Block, whole
from samebits.parallel.linear import MATRIX_WIDTH
from samebits.parallel.world import Group

ACTIVATIONS: Final = "gather activations"
INWARD: Final = ("o_proj.weight", "down_proj.weight")


@dataclass(frozen=True, kw_only=True)
class Split:
    """How a config's weights are cut over a group. `gathers`: for inference, without travelling chains."""

    config: ModelConfig
    group: Group
    gathers: bool = False

    def __post_init__(self) -> None:
        width = self.config.num_attention_heads // self.config.num_key_value_heads * self.config.head_dim
        if self.group.size > 1 and not self.gathers and width % MATRIX_WIDTH:
            raise ValueError(
                f"split: {width} outputs of heads that share keys; allowed over ranks: a multiple of {MATRIX_WIDTH}"
            )

    def key_heads(self) -> list[int]:
        """Cuts of the key heads."""
        return even_cuts(self.config.num_key_value_heads, self.group.size)

    def heads(self) -> list[int]:
        each = self.config.num_attention_heads // self.config.num_key_value_heads
        return [each * cut for cut in self.key_heads()]

    def intermediate(self) -> list[int]:
        return stepped_cuts(self.config.intermediate_size, self.group.size, MATRIX_WIDTH)

    def vocabulary(self) -> list[int]:
        return vocabulary.vocabulary_cuts(self.config.vocab_size, self.group.size)

    def hidden(self) -> list[int]:
        return even_cuts(self.config.hidden_size, self.group.size)

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return shapes(self.config)

    def _cut(self, name: str) -> tuple[int, list[int]] | None:
        """The axis on which a weight is cut, and where; None: every rank has it whole."""
        size = self.config.head_dim
        if name in (EMBEDDING, HEAD):
            return 0, self.vocabulary()
        if name.endswith(INWARD) and self.gathers:
            return 0, self.hidden()
        if name.endswith(("q_proj.weight", "o_proj.weight")):
            return int(name.endswith("o_proj.weight")), [cut * size for cut in self.heads()]
        if name.endswith(("k_proj.weight", "v_proj.weight")):
            return 0, [cut * size for cut in self.key_heads()]
        if name.endswith(("gate_proj.weight", "up_proj.weight", "down_proj.weight")):
            return int(name.endswith("down_proj.weight")), self.intermediate()
        return None

    def held(self, name: str, place: int) -> Block:
        """What a rank of the group holds of a weight."""
        everything, cut = whole(self._shapes[name]), self._cut(name)
        if cut is None:
            return everything
        axis, places = cut
        span = (places[place], places[place + 1])
        return Block(rows=span, columns=everything.columns) if axis == 0 else Block(rows=everything.rows, columns=span)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of this rank's blocks."""
        found: dict[str, tuple[int, ...]] = {}
        for name, shape in self._shapes.items():
            held = self.held(name, self.group.place)
            columns = held.columns[1] - held.columns[0]
            found[name] = (columns,) if len(shape) == 1 else (held.rows[1] - held.rows[0], columns)
        return found

    def take(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """This rank's blocks of whole weights, in memory of their own."""
        found = {}
        for name, weight in weights.items():
            held = self.held(name, self.group.place)
            rows = weight if weight.dim() == 1 else weight[slice(*held.rows)]
            found[name] = rows[..., slice(*held.columns)].detach().clone(memory_format=torch.contiguous_format)
        return found

    def operators(self, base: Operators) -> Operators:
        """The set that computes over the ranks; within one rank, as `base` does."""
        functions = {each.name: getattr(base, each.name) for each in fields(base)}
        return SplitOperators(split=self, **functions)


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitOperators(Operators):
    """Every rank of a group with its blocks of the weights."""

    split: Split

    def embed(self, ids: Tensor, weight: Tensor, sums: Sums | None) -> Tensor:
        cuts, group = self.split.vocabulary(), self.split.group
        return vocabulary.embedding(ids, weight, cuts[group.place], group, sums=sums, cuts=cuts)

    def outward(self, x: Tensor, weights: Sequence[Tensor], sums: Sequence[Sums | None]) -> Sequence[Tensor]:
        """Input gradients are gathered where there are any."""
        wanted = [each for each in sums if each is not None]
        if not wanted:
            return Operators.outward(self, x, weights, sums)
        return linear.column_parallel(x, list(weights), self.split.group, sums=wanted)

    def inward(self, x: Tensor, weight: Tensor, sums: Sums | None, name: str) -> Tensor:
        """The part of x that is here with a weight that writes into the residual stream: all of it, on every rank."""
        split = self.split
        if not split.gathers:
            return linear.row_parallel(x, weight, split.group, sums=sums)
        cuts = [cut * split.config.head_dim for cut in split.heads()] if "o_proj" in name else split.intermediate()
        everything = gather_columns(split.group, x, widths_of(cuts), ACTIVATIONS)
        return linear.gathered_linear(everything, weight, split.group, widths_of(split.hidden()))

    def head_norms(
        self, q: Tensor, k: Tensor, weights: Sequence[Tensor], sums: Sequence[Sums | None], eps: float
    ) -> Sequence[Tensor]:
        split, wanted = self.split, [each for each in sums if each is not None]
        if not wanted:
            return Operators.head_norms(self, q, k, weights, sums, eps)
        counts = (widths_of(split.heads()), widths_of(split.key_heads()))
        backend = choose_backend("head_norms", q, None)
        return head_norms((q, k), weights, wanted, counts, eps, split.group, backend)

    def logprobs(self, hidden: Tensor, weight: Tensor, ids: Tensor, sums: Sums | None) -> Tensor:
        return vocabulary.selected_logprob(hidden, weight, ids, self.split.vocabulary(), self.split.group, sums=sums)

    def logits(self, hidden: Tensor, weight: Tensor, sums: Sums | None) -> Tensor:
        if sums is not None:
            size = self.split.group.size
            raise ValueError(f"split: logits with a gradient on {size} ranks; allowed: on one, or logprobs")
        return vocabulary.lm_head(hidden, weight, self.split.vocabulary(), self.split.group)
