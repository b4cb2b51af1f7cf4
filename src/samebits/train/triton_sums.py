"""Weight gradients in one piece of memory that stays: their norm, clipping and zeros are those of one tensor.

In the norm's order every tensor begins a piece of 65536 elements, and outside of tensors a square of +0 changes no sum.
So a tensor that holds all gradients, each from a multiple of 65536 on and +0 between them, has the norm of the list."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from samebits.model import Model
from samebits.model.model import TIED_HEAD
from samebits.model.weights import EMBEDDING
from samebits.ops.accumulation import Spans, Sums
from samebits.ops.grad_norm.reference import PIECE


class LaneSums:
    """The sums of one lane, of every weight, and of a tied head behind them."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], tied: bool, device: torch.device) -> None:
        wanted = {**shapes, **({TIED_HEAD: shapes[EMBEDDING]} if tied else {})}
        sizes = {name: math.prod(shape) for name, shape in wanted.items()}
        starts = [0, *accumulate(-(-size // PIECE) * PIECE for size in sizes.values())]
        self._memory = torch.zeros(starts[-1], dtype=torch.float32, device=device)
        self.parts = {
            name: self._memory[start : start + sizes[name]].view(wanted[name])
            for name, start in zip(wanted, starts, strict=False)
        }
        self._tied = self.parts.get(TIED_HEAD)
        self._whole = self._memory if self._tied is None else self._memory[: starts[-2]]
        self._names = tuple(shapes)

    def clear(self) -> None:
        self._memory.zero_()

    def gradients(self) -> dict[str, Tensor]:
        """What the sums came to; a tied head's goes into the embedding's, so this is asked for once after `clear`."""
        if self._tied is not None:
            self.parts[EMBEDDING].add_(self._tied)
        return {name: self.parts[name] for name in self._names}

    def whole(self, gradients: Mapping[str, Tensor]) -> Tensor | None:
        """All of them as one tensor; None where they are not these sums."""
        same = tuple(gradients) == self._names and all(each is self.parts[name] for name, each in gradients.items())
        return self._whole if same else None


def summing(model: Model, lanes: Sequence[LaneSums], borders: Sequence[int] | None) -> Model:
    """The same weights, to be differentiated, adding to these sums: `Model.with_sums`, but for who has the memory."""
    wanted = {name: weight.detach().requires_grad_() for name, weight in model.weights.items()}
    sums: dict[str, Sums] = {}
    for name, part in lanes[0].parts.items():
        each = tuple(lane.parts[name] for lane in lanes)
        sums[name] = part if borders is None else Spans(each, tuple(borders))
    return replace(model, weights=wanted, sums=sums, joined={})
