"""Whether a promise means anything for a model: an encoder has no cache, and some models count positions by themselves.

Asked where two runs differ, before that is called a fault. Knows transformers' calling convention and no model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from samebits.checker.model_forms import Form, alone, run, takes_positions
from samebits.numerics.bits import same_bits

ROUNDING = 16
"""Logits that move by more than so many epsilons of the largest have moved by more than rounding."""


class Meaning:
    """What one model's differences can mean, on one sequence."""

    def __init__(self, model: nn.Module, ids: Tensor) -> None:
        self._model, self._ids = model, ids

    @property
    def _name(self) -> str:
        return type(self._model).__name__

    def without_cache(self, form: Form) -> str:
        """The reason why calls that should share a cache, and left nothing in it, say nothing."""
        return f"{self._name} keeps no keys and values in the cache it is given: {form.promise} has no meaning for it"

    def counted(self, form: Form, plain: dict[str, Tensor]) -> dict[str, Tensor] | None:
        """The sequence alone, told that its positions begin at 0, where the model by itself counts otherwise.

        A padded form says where its sequences begin: it can only be compared with one that does so too."""
        if form.calls[0].mask is None or not takes_positions(self._model):
            return None
        found = run(self._model, alone(self._ids, count=True)).results
        return None if same_bits(found["logits"], plain["logits"]) else found

    def lacking(self, form: Form) -> str:
        """Why a difference is none of the promise's, or ""."""
        if form.moved and not takes_positions(self._model):
            return (
                f"{form.words}: {self._name} takes no position_ids, so that padding on the left may move a sequence to"
                " other positions, which is another input"
            )
        if form.cached and self._looks_ahead():
            return f"{self._name} looks at later tokens: {form.promise} has no meaning for it"
        return ""

    def _looks_ahead(self) -> bool:
        """Whether other tokens in the second half move the logits of the first by more than rounding."""
        half = self._ids.numel() // 2
        others = torch.cat([self._ids[:half], self._ids[half:].flip(0)])
        one, other = (
            run(self._model, alone(ids, stop=half), gradients=False).results["logits"].float()
            for ids in (self._ids, others)
        )
        most = ROUNDING * torch.finfo(next(self._model.parameters()).dtype).eps * one.abs().max()
        return bool((one - other).abs().max() > most)
