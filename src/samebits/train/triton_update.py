"""An update in two passes over memory: the norm of all gradients with their largest magnitudes, then all that is left.

What `updating.OneByOne` asks of operators, with the same bits: every sum in the order of `grad_norm`, every element by
the operators' own functions. Clipped gradients are in no memory; roundings for the next pass are made on the way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Final

import torch
from torch import Tensor

from samebits.model.weights import EMBEDDING
from samebits.ops._triton.device import on_device
from samebits.ops._triton.launch import run
from samebits.ops._triton.roots import square_root
from samebits.ops._triton.sizes import cdiv
from samebits.ops.adamw import AdamW
from samebits.ops.adamw.reference import Numbers
from samebits.ops.adamw.triton_kernel import Kind, by_kind
from samebits.ops.adamw.triton_tables import NUMBERS, Row, tables
from samebits.ops.grad_norm.reference import PIECE
from samebits.ops.grad_norm.triton_kernel import pieces, total_of
from samebits.trace import span
from samebits.train.triton_pieces import largest_of_tensors, update_pieces

WARPS: Final = 2
"""Decides speed alone."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Tensors of one group of the optimizer, of one kind and of one count of updates."""

    group: Mapping[str, Any]
    count: int
    """Of updates, this one included."""
    kind: Kind
    tables: tuple[Tensor, ...]

    @property
    def numbers(self) -> Numbers:
        group = self.group
        beta1, beta2 = group["betas"]
        return Numbers.of(self.count, group["lr"], beta1, beta2, group["eps"], group["weight_decay"])


class PieceUpdate:
    """The updates of one run, of gradients that lie as one tensor in which each begins a piece."""

    def __init__(
        self,
        whole: Tensor,
        gradients: Mapping[str, Tensor],
        weights: Mapping[str, Tensor],
        roundings: Mapping[str, Tensor] | None,
        optimizer: AdamW,
    ) -> None:
        """`roundings`: of all weights, those that passes read; None where passes read the weights."""
        self.whole, self.weights, self.roundings, self.optimizer = whole, weights, roundings, optimizer
        self.rounded, self._gradients = roundings is not None, gradients
        borders = list(accumulate((cdiv(each.numel(), PIECE) for each in weights.values()), initial=0))
        place = list(weights).index(EMBEDDING)
        self._embedding = slice(borders[place], borders[place + 1])
        self._borders = torch.tensor(borders, dtype=torch.int32, device=whole.device)
        self._sums = torch.empty(borders[-1], dtype=torch.float32, device=whole.device)
        self._largest = torch.empty(borders[-1], dtype=torch.int32, device=whole.device)
        self._launches: list[Launch] = []

    def is_of(self, *given: object) -> bool:
        """Whether this is of these sums, weights, roundings and optimizer, and no others."""
        own = (self.whole, self.weights, self.roundings, self.optimizer)
        return all(mine is each for mine, each in zip(own, given, strict=True))

    def seen(self) -> tuple[Tensor, Tensor]:
        with on_device(self.whole):
            pieces(self.whole, self._sums, self._largest)
            found = self._norms(self._sums)[0], self._magnitudes()
            # While the device is busy.
            self._launches = list(self._prepared())
        return found

    def made(self, norm: Tensor, max_norm: float) -> tuple[Tensor, Tensor]:
        with span("clipping and optimizer"), on_device(self.whole):
            for launch in self._launches:
                run(
                    update_pieces,
                    len(launch.tables[-1]),
                    (*launch.tables, norm, self._sums, self._largest, max_norm, *launch.numbers.values),
                    warps=WARPS,
                    stages=1,
                    PARAM=NUMBERS[launch.kind.param],
                    MASTER=self.rounded,
                    ALIGNED=launch.kind.aligned,
                )
            found = self._norms(self._sums, self._sums[self._embedding]), self._magnitudes()
        # The device is busy again.
        self._count()
        return found

    def _norms(self, *sums: Tensor) -> Tensor:
        """From sums of the squares of pieces."""
        totals = torch.empty(len(sums), dtype=torch.float32, device=self.whole.device)
        for each, total in zip(sums, totals.unbind(), strict=True):
            total_of(each, total)
        return square_root(totals)

    def _magnitudes(self) -> Tensor:
        """The largest of each tensor, NaN where one is; 0 where all are zero, or none."""
        found = torch.empty(len(self.weights), dtype=torch.int32, device=self.whole.device)
        run(largest_of_tensors, len(found), (self._largest, self._borders, found), warps=WARPS, stages=1)
        return found.view(torch.float32)

    def _prepared(self) -> Iterator[Launch]:
        names = {id(weight): name for name, weight in self.weights.items()}
        for group in self.optimizer.param_groups:
            counted: dict[int, list[str]] = defaultdict(list)
            for weight in group["params"]:
                counted[self.optimizer.state[weight]["step"] + 1].append(names[id(weight)])
            for count, chosen in counted.items():
                for kind, rows in self._rows(chosen).items():
                    yield Launch(group, count, kind, tables(rows, PIECE, self.whole.device))

    def _rows(self, names: Sequence[str]) -> dict[Kind, list[Row]]:
        """As `adamw_step` has them, weights as masters of their roundings; before the size the number of the tensor's
        first piece in the sums."""
        weights, gradients = ([each[name] for name in names] for each in (self.weights, self._gradients))
        states = [self.optimizer.state[weight] for weight in weights]
        first, second = ([state[kind] for state in states] for kind in ("exp_avg", "exp_avg_sq"))
        _refuse([*weights, *gradients, *first, *second])
        params: list[Tensor] = weights
        masters: list[Tensor] = []
        if self.roundings is not None:
            params, masters = [self.roundings[name] for name in names], weights
        begin, width = self.whole.data_ptr(), PIECE * self.whole.element_size()
        return {
            kind: [(*row[:-1], (row[1] - begin) // width, row[-1]) for row in rows]
            for kind, rows in by_kind(params, gradients, first, second, masters).items()
        }

    def _count(self) -> None:
        """As the optimizer does, and says to torch that tensors were written."""
        for weight in chain.from_iterable(group["params"] for group in self.optimizer.param_groups):
            self.optimizer.state[weight]["step"] += 1
        written = (self.weights, self.roundings or {}, *(self.optimizer.state[each] for each in self.weights.values()))
        tensors = (each for some in written for each in some.values() if isinstance(each, Tensor))
        torch.autograd.graph.increment_version(tensors)


def _refuse(tensors: Sequence[Tensor]) -> None:
    for each in tensors:
        if each.dtype != torch.float32 or not each.is_contiguous():
            lies = "in one piece" if each.is_contiguous() else "not in one piece"
            raise ValueError(f"update: a tensor is {each.dtype} and {lies}; allowed: torch.float32, in one piece")
