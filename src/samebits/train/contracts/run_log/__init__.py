"""What a log shows of a whole run: the losses of its steps, and how much of their time is that of a named part.

Rows of text are sequences, two of which make an update. Times are in no output but as a share in whole twentieths:
they never repeat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch
from torch import Tensor

from samebits.model.contracts.small_model import SMALL
from samebits.trace import Event, Span, recording, span
from samebits.train import events
from samebits.train.configuration import ModelSection, Overrides, TrainConfig
from samebits.train.contracts.small_run import config_of, data_of, trainer_of
from samebits.train.running import run
from samebits.train.trainer import OURS, Parts

BATCH: Final = 2
# Chosen by trial so that a hundredfold rate shows: of 2^-8 it does not, AdamW still learns these few rows with it.
RATE: Final = 2.0**-6
WARMUP: Final = 10
TWENTIETHS: Final = 20
Observer = Callable[[int, Mapping[str, Tensor]], None]


def _config(text: Tensor, steps: int, rate: float) -> TrainConfig:
    """A run of the small model, from weights of its seed."""
    names = Overrides.__dataclass_fields__
    shape = Overrides(**{name: getattr(SMALL, name) for name in names})
    config = config_of(BATCH, BATCH, rate, steps, width=text.shape[1] - 1)
    optimizer = replace(config.optimizer, warmup_steps=WARMUP)
    return replace(config, model=ModelSection(preset="tiny", overrides=shape), optimizer=optimizer)


def losses(text: Tensor, counts: Tensor, steps: Tensor, *, rate: float = RATE, parts: Parts = OURS) -> Tensor:
    """(steps) float64: the loss of every step, as the log of a run into a folder has it."""
    with TemporaryDirectory() as folder:
        run(_config(text, int(steps), rate), Path(folder), parts=parts, data=data_of(text, counts))
        found = [each["loss"] for each in events.read(Path(folder)) if each["event"] == "step"]
    return torch.tensor(found, dtype=torch.float64)


@dataclass(slots=True)
class _Times:
    """A sink that keeps the spans of steps and of their parts; kernels are within parts."""

    steps: dict[int, int] = field(default_factory=dict)
    """Nanoseconds by the span's number; of parts, by the number of the span around them."""
    parts: dict[int, int] = field(default_factory=dict)

    def span(self, span: Span) -> None:
        if span.granularity == "step":
            self.steps[span.number] = span.nanoseconds
        elif span.granularity == "block":
            self.parts[span.parent] = self.parts.get(span.parent, 0) + span.nanoseconds

    def event(self, event: Event) -> None:
        return None

    def close(self) -> None:
        return None

    def covered(self) -> int:
        """The share of the steps' time that is their parts', in whole twentieths."""
        inside = sum(self.parts.get(number, 0) for number in self.steps)
        return TWENTIETHS * inside // sum(self.steps.values())


def covered(
    text: Tensor, counts: Tensor, weights: Tensor, steps: Tensor, *, observer: Observer | None = None
) -> Tensor:
    """(2): steps that were timed, and the share of their time that named parts cover, in whole twentieths.

    The first step, in which everything is used for the first time, is made and not timed. `observer` is told of every
    step's gradients, as the trainer's observers are."""
    trainer = trainer_of(config_of(BATCH, BATCH, RATE, int(steps) + 1, width=text.shape[1] - 1), text, counts, weights)
    if observer is not None:
        trainer.observers.append(observer)
    trainer.step()
    times = _Times()
    with recording(times):
        for number in range(int(steps)):
            with span(f"step {number + 2}", "step"):
                trainer.step()
    return torch.tensor([len(times.steps), times.covered()])
