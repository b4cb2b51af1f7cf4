"""What is watched of a run beside its contracts: samples of gradients for alarms, fingerprints that name an element.

Reads gradients and changes none. The file of fingerprints is appended to, a JSON object a step."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from samebits.records.appending import append, drop_torn_line
from samebits.records.plain_file import open_plain
from samebits.trace.drift import Alarm, Drift, Sampled
from samebits.trace.fingerprint import Fingerprint, fingerprint
from samebits.trace.modules import sampled
from samebits.train.ranks import Ranks
from samebits.train.trainer import StepRecord, Trainer

FINGERPRINTS: Final = "fingerprints.jsonl"


def block_of(weight: str) -> str:
    """The part of the model that a weight belongs to: `model.layers.3.mlp.up_proj.weight` -> `layers.3.mlp`."""
    parts = weight.removeprefix("model.").removesuffix(".weight").split(".")
    return ".".join(parts[:3]) if parts[0] == "layers" else parts[0]


class Observing:
    """Hooked to a trainer; asked by the run after every step."""

    def __init__(self, trainer: Trainer, folder: Path) -> None:
        monitoring = trainer.config.monitoring
        self._samples, self._fingerprints = monitoring.sample_steps, monitoring.fingerprint_steps
        self._ranks, self._folder, self._drift = trainer.ranks, folder, Drift()
        self._blocks: dict[str, Sampled] = {}
        if self._samples or self._fingerprints:
            trainer.observers.append(self._observe)

    def alarms(self, record: StepRecord, tokens_per_second: float) -> list[Alarm]:
        """What begins to drift at this step. A run's first steps, which compile and warm up, are too few to compare."""
        blocks, self._blocks = self._blocks, {}
        return self._drift.observe(
            record.step, loss=record.loss, norm=record.norm, tokens_per_second=tokens_per_second, blocks=blocks
        )

    def _observe(self, step: int, gradients: Mapping[str, Tensor]) -> None:
        if self._samples and step % self._samples == 0:
            self._blocks = {name: sampled(gradient) for name, gradient in gradients.items() if gradient.numel()}
        if self._fingerprints and step % self._fingerprints == 0:
            whole = _whole(self._ranks, gradients)
            if whole is not None:
                _append(self._folder / FINGERPRINTS, step, whole)


def _whole(ranks: Ranks, gradients: Mapping[str, Tensor]) -> Mapping[str, Tensor] | None:
    """Of all ranks together, on one of them; None on the others."""
    found: Mapping[str, Tensor] | None = ranks.whole(dict(gradients), {name: name for name in gradients})
    return found


def _append(path: Path, step: int, gradients: Mapping[str, Tensor]) -> None:
    documents = {name: fingerprint(gradient).document() for name, gradient in gradients.items()}
    handle = open_plain(path, os.O_RDWR | os.O_APPEND)
    try:
        drop_torn_line(handle)
        append(handle, f"{json.dumps({'step': step, 'gradients': documents})}\n".encode(), path)
    finally:
        os.close(handle)


def fingerprints(folder: Path) -> Iterator[tuple[int, dict[str, Fingerprint]]]:
    """(step, fingerprint of every gradient) of a run, steps ascending; of a step made again, the last."""
    path = folder / FINGERPRINTS
    if not path.is_file():
        return
    lines: dict[int, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        document = json.loads(line)
        lines[document["step"]] = document["gradients"]
    for step in sorted(lines):
        yield step, {name: Fingerprint.of_document(each) for name, each in lines[step].items()}
