"""Whether the gradient of all ranks is that of one process, bit by bit, and if not, whose part of it is missing.

An observer of a trainer, for debugging: rank 0 goes through the whole batch alone, copy after copy, and adds by the
same tree. Takes as long as all ranks together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from samebits.model import Model
from samebits.model.weights import shapes
from samebits.parallel.collectives import tree_sum
from samebits.parallel.schedules import Lanes
from samebits.trace.findings import Finding, Findings
from samebits.train import lanes
from samebits.train.data_order import sequences_of
from samebits.train.ranks import ALONE, Alone
from samebits.train.trainer import Trainer

CONTRACT: Final = "DIST-002"


@dataclass(frozen=True, kw_only=True, slots=True)
class _OneCopy(Alone):
    """One process that goes through the lanes of one of several copies of the weights."""

    copy: int
    count: int

    def lanes(self, lanes: Lanes) -> range:
        return lanes.lanes_of(self.copy, self.count)


class Agreement:
    """Told of every step's gradients; what does not agree goes to `findings`, on rank 0."""

    def __init__(self, trainer: Trainer, findings: Findings) -> None:
        self._trainer, self._findings = trainer, findings
        if trainer.ranks.world.size > 1:
            trainer.observers.append(self._observe)

    def _observe(self, step: int, gradients: Mapping[str, Tensor]) -> None:
        trainer = self._trainer
        names = {name: name for name in gradients}
        weights, found = trainer.ranks.whole(trainer.weights, names), trainer.ranks.whole(dict(gradients), names)
        if weights is None or found is None:
            return
        parts = self._parts(step, weights)
        for name, wanted in shapes(trainer.model().config).items():
            given = found[name].reshape(wanted)
            alone = _total([part[name] for part in parts])
            if not _same(given, alone):
                missing = [
                    copy for copy in range(len(parts)) if _same(given, _total([part[name] for part in parts], copy))
                ]
                self._tell(step, name, int((_bits(given) != _bits(alone)).sum()), given.numel(), missing)

    def _parts(self, step: int, weights: Mapping[str, Tensor]) -> list[lanes.Gradients]:
        """What each copy's lanes bring, computed here."""
        trainer, training = self._trainer, self._trainer.config.training
        config = trainer.model().config
        whole = Model(config=config, weights={name: weights[name].reshape(shapes(config)[name]) for name in weights})
        model = ALONE.model(whole, dict(whole.weights), getattr(torch, training.dtype))
        places = sequences_of(step, seed=training.seed, sequences=len(trainer.data), batch=training.global_batch_size)
        examples = [trainer.data.sequence(place) for place in places.tolist()]
        copies = trainer.ranks.copies.size
        cuts = [replace(trainer.cut, ranks=_OneCopy(copy=copy, count=copies)) for copy in range(copies)]
        return [lanes.backward(model, examples, cut).gradients for cut in cuts]

    def _tell(self, step: int, name: str, differ: int, elements: int, missing: Sequence[int]) -> None:
        message = f"step {step}: {differ} of {elements} elements of the gradient are not those of one process"
        place = name
        if missing:
            # Ranks of a copy are neighbours.
            each = self._trainer.ranks.world.size // self._trainer.ranks.copies.size
            message += ", they are the sum without its part"
            place = f"rank {missing[0] * each}, {name}"
        finding = Finding(granularity="block", place=place, contract=CONTRACT, message=f"{message}; allowed: its bits")
        self._findings.add(finding)


def _total(parts: Sequence[Tensor], without: int | None = None) -> Tensor:
    return tree_sum([torch.zeros_like(part) if copy == without else part.clone() for copy, part in enumerate(parts)])


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.int32)


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(_bits(one), _bits(other))
