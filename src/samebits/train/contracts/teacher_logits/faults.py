"""Planted faults of kept logits: another order of batches, lost precision, a remainder dropped or spread wrong."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from samebits.train.contracts.teacher_logits import REST, Form
from samebits.train.contracts.teacher_logits.check import TEMPERATURE, TOP_K, read_back_in
from samebits.train.teacher_store import TeacherStore, Tokens


class ByPlace(TeacherStore):
    """Logits are given out in the order in which they were written, whatever sequence asks."""

    def logits(self, inputs: Tokens) -> Tensor:
        self.given = getattr(self, "given", -1) + 1
        keys = [key for shard in self.shards.values() for key in shard.keys]
        shard, start, rows = self._places[keys[self.given % len(keys)]]
        opened = self._open(shard)
        return self.form.restored({name: opened.get_slice(name)[start : start + rows] for name in opened.keys()})  # noqa: SIM118


class WithoutRest(Form):
    """What is not kept has no probability."""

    def restored(self, kept: Mapping[str, Tensor]) -> Tensor:
        return Form.restored(self, {**kept, REST: torch.full_like(kept[REST], -torch.inf)})


class RestIsLeast(Form):
    """What is not kept is as likely as the least that is."""

    def restored(self, kept: Mapping[str, Tensor]) -> Tensor:
        return Form.restored(self, {**kept, REST: kept["logits"].amin(-1)})


def batches_in_another_order(logits_SRV: Tensor) -> Tensor:
    form = Form(vocab_size=logits_SRV.shape[-1], temperature=TEMPERATURE)
    return read_back_in(form, logits_SRV, store=ByPlace)


def largest_in_another_order(logits_SRV: Tensor) -> Tensor:
    form = Form(vocab_size=logits_SRV.shape[-1], temperature=TEMPERATURE, top_k=TOP_K)
    return read_back_in(form, logits_SRV, store=ByPlace)


def in_sixteen_bits(logits_SRV: Tensor) -> Tensor:
    """Kept in bfloat16, and said to be exact."""
    return read_back_in(Form(vocab_size=logits_SRV.shape[-1], temperature=TEMPERATURE, dtype="bfloat16"), logits_SRV)


def remainder_dropped(logits_SRV: Tensor) -> Tensor:
    return read_back_in(WithoutRest(vocab_size=logits_SRV.shape[-1], temperature=TEMPERATURE, top_k=TOP_K), logits_SRV)


def remainder_too_large(logits_SRV: Tensor) -> Tensor:
    return read_back_in(RestIsLeast(vocab_size=logits_SRV.shape[-1], temperature=TEMPERATURE, top_k=TOP_K), logits_SRV)
