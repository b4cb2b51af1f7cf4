"""A run from its configuration to its last checkpoint: refused before a step is spent, logged, shown, resumed.

Knows no arithmetic; the trainer does. What a kill leaves behind is the last checkpoint that was committed."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import samebits
from samebits.model.model import Model
from samebits.parallel.agreeing import agree, digest_of
from samebits.parallel.collectives import gathered_integers
from samebits.parallel.grid import Grid
from samebits.parallel.world import World
from samebits.trace import event, span
from samebits.train import checkpoint, watch
from samebits.train.assessment import Assessment, assess, data_of, model_of, shape_of, words_of
from samebits.train.configuration import TrainConfig, comparable
from samebits.train.data import Data
from samebits.train.display import Screen, Shown, Silent
from samebits.train.events import UNWRITTEN, Events, opened
from samebits.train.manifest import MARKER
from samebits.train.observing import Observing
from samebits.train.plan_rules import check_counted
from samebits.train.ranks import ranks_of
from samebits.train.speed import peak_flops, utilisation
from samebits.train.step_traces import StepTraces
from samebits.train.trainer import OURS, Parts, StepRecord, Trainer


class RefusedError(Exception):
    """A plan that may not run, with all its refusals."""

    def __init__(self, assessment: Assessment) -> None:
        super().__init__("; ".join(map(str, assessment.refusals)))
        self.assessment = assessment


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What a run came to."""

    folder: str
    steps: int
    resumed_from: int
    """0: from the beginning."""
    loss: float | None
    """Of the last update; None where a resumed run had none left."""
    tokens: int
    """Targets seen by this process."""
    seconds: float
    digest: str
    """Of the last checkpoint."""
    waived: tuple[str, ...]


def run(
    config: TrainConfig,
    folder: Path,
    *,
    resume: bool = False,
    allow_changes: Sequence[str] = (),
    screen: Screen | None = None,
    parts: Parts = OURS,
    grid: Grid | None = None,
    data: Data | None = None,
    trace_steps: int = 0,
) -> Summary:
    """Trains into a folder. `resume` goes on from its newest whole checkpoint, or begins where there is none.
    `data`: what the configuration names, where it has been read already. `trace_steps`: every how many steps one is
    recorded, on rank 0; 0: none.

    On every rank of a grid at once, with one folder for all of them: rank 0 shows, logs and keeps checkpoints. What
    each rank reads is compared before anything is written."""
    grid = grid or Grid(world=World())
    world = grid.world
    traces = StepTraces(folder, trace_steps if world.rank == 0 else 0)
    screen = screen if screen is not None and world.rank == 0 else Silent()
    agree(
        world,
        "settings",
        {**comparable(config), "--resume": resume, "--allow-changes": sorted(allow_changes), "--tensor": grid.tensor},
    )
    shape, data = shape_of(config), data_of(config) if data is None else data
    assessment = assess(config, shape, data)
    if not assessment.allowed:
        raise RefusedError(assessment)
    for refusal in assessment.waived:
        screen.note(f"WAIVED {refusal}")
    present = trained(folder)
    refuse_if_trained(folder, present, resume)
    model = model_of(config)
    kept = checkpoint.read(folder) if present else None
    if world.size > 1:
        agree(world, "data", _facts(config, data, model, kept))
    ranks = ranks_of(grid, model)
    with opened(folder) if world.rank == 0 else nullcontext(UNWRITTEN) as events:
        trainer = Trainer(config, model, data, parts, ranks)
        del model  # Whole weights: a rank of many goes on without them.
        if kept is not None:
            for line in kept.skipped:
                screen.note(f"passed over: {line}")
            trainer.restore(kept, tuple(allow_changes))
            del kept
        return _Run(trainer, folder, events, screen, assessment, traces).whole()


def trained(folder: Path) -> list[int]:
    """Steps that were committed, ascending, those that were damaged since among them: a marker is written last.

    A damaged step is no reason to begin anew without a word; reading it names the damage."""
    return sorted(int(path.parent.name[5:]) for path in folder.glob(f"step-{8 * '[0-9]'}/{MARKER}"))


def refuse_if_trained(folder: Path, present: Sequence[int], resume: bool) -> None:
    """Nothing is ever written over: a folder that holds steps is gone on with, or left alone."""
    if present and not resume:
        raise ValueError(f"{folder}: holds checkpoints up to step {present[-1]}; allowed: --resume, or another folder")


def _facts(config: TrainConfig, data: Data, model: Model, kept: checkpoint.Checkpoint | None) -> dict[str, Any]:
    """What ranks read from files that each may see its own way, by content."""
    return {
        "data": f"sha256:{data.digest()}",
        "tokenizer": f"sha256:{words_of(config).digest()}",
        "model config": json.dumps(asdict(model.config), sort_keys=True),
        "model weights": digest_of(model.weights.items()),
        "checkpoint": None if kept is None else f"step {kept.step}, {kept.digest}",
    }


def environment(trainer: Trainer) -> dict[str, Any]:
    """What a run was made with that should decide no bit: told, so that two runs can be compared."""
    training, world = trainer.config.training, trainer.ranks.world
    return {
        "samebits": samebits.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "device": training.device,
        "threads": torch.get_num_threads(),
        "ranks": world.size,
        "micro_batch_size": training.micro_batch_size,
        "collation": training.collation,
    }


class _Run:
    """The loop, and all that happens around a step."""

    def __init__(
        self, trainer: Trainer, folder: Path, events: Events, screen: Screen, assessment: Assessment, traces: StepTraces
    ) -> None:
        self.trainer, self.folder, self.events, self.screen, self.traces = trainer, folder, events, screen, traces
        self.waived = tuple(refusal.obligation for refusal in assessment.waived)
        self.parameters = assessment.run.parameters
        self.resumed_from, self.tokens = trainer.done, 0
        self.loss: float | None = None
        self.peak = peak_flops(trainer.config)
        self.observing = Observing(trainer, folder)

    def whole(self) -> Summary:
        began, trainer = time.perf_counter(), self.trainer
        self.events.write(
            "start",
            {
                "from_step": self.resumed_from,
                "steps": trainer.run.steps,
                "parameters": self.parameters,
                "tokens_per_step": trainer.run.per_step,
                "waived": list(self.waived),
                "peak_flops": self.peak,
                "settings": trainer.facts(),
                "environment": environment(trainer),
            },
        )
        try:
            while trainer.done < trainer.run.steps:
                self._step()
            self._count()
            # No rank looks for the last checkpoint before rank 0 has kept it.
            gathered_integers(trainer.ranks.world.group, [trainer.done])
        except watch.BreachError as breach:
            self.events.write("breach", {"contract": breach.contract, "step": breach.step, "message": breach.message})
            raise
        summary = Summary(
            folder=str(self.folder),
            steps=trainer.done,
            resumed_from=self.resumed_from,
            loss=self.loss,
            tokens=self.tokens,
            seconds=time.perf_counter() - began,
            waived=self.waived,
            digest=checkpoint.read(self.folder, trainer.done).digest,
        )
        self.events.write("end", asdict(summary) | {"folder": self.folder.name, "waived": list(self.waived)})
        return summary

    def _step(self) -> None:
        number = self.trainer.done + 1
        with self.traces.step(number), span(f"step {number}", "step"):
            record = self.trainer.step()
        self._show(record)
        every, last = self.trainer.config.training.save_steps, self.trainer.run.steps
        if record.step % every == 0 or record.step == last:
            training = self.trainer.config.training
            kept = self.trainer.state()
            if kept is not None:
                path = checkpoint.write(self.folder, record.step, **kept, keep=training.save_total_limit)
                self.events.write("checkpoint", {"step": record.step, "digest": checkpoint.digest(path)})

    def _show(self, record: StepRecord) -> None:
        self.tokens, self.loss = self.tokens + record.tokens, record.loss
        shown = Shown(
            record=record,
            steps=self.trainer.run.steps,
            tokens_per_second=record.tokens / record.seconds,
            utilisation=utilisation(self.parameters, record.tokens, record.seconds, self.peak),
        )
        speeds = {"tokens_per_second": shown.tokens_per_second, "mfu": shown.utilisation}
        self.events.write("step", asdict(record) | speeds)
        event("step", **asdict(record), **speeds)
        self.screen.step(shown)
        for alarm in self.observing.alarms(record, shown.tokens_per_second):
            self.events.write("alarm", alarm.facts())
            event("alarm", **alarm.facts())
            self.screen.note(f"ALARM {alarm}")

    def _count(self) -> None:
        """C-TRAINCFG-001: the optimizer made the updates of the plan, of every weight."""
        counted = self.trainer.counted()
        watch.updates_are_counted(self.trainer.done, counted)
        for refusal in check_counted(self.trainer.plan, min(counted.values())):
            raise watch.BreachError(watch.COUNTED, self.trainer.done, str(refusal))
