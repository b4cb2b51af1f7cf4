"""A run under inspection: its configuration before a step, then some steps with every check there is, as findings.

    for finding in inspected(config, steps=2):
        print(finding)

What would stop a run, and what would only be told of it, ends on one list, with granularity and place. Checks cost
several times the run; nothing is kept of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from samebits.model import Model
from samebits.parallel.grid import Grid
from samebits.trace import debug
from samebits.trace.drift import Alarm, Drift, Sampled
from samebits.trace.findings import Finding, Findings
from samebits.trace.modules import sampled
from samebits.train import watch
from samebits.train.agreement import Agreement
from samebits.train.assessment import Assessment, assess, data_of, model_of, shape_of
from samebits.train.configuration import TrainConfig
from samebits.train.observing import block_of
from samebits.train.ranks import ALONE, ranks_of
from samebits.train.trainer import OURS, Parts, Trainer

# Contracts on what a configuration says; all others are of steps and blocks.
_OF_CONFIG: Final = (watch.HYPERPARAMETERS, watch.COUNTED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What is inspected. A faulty part can stand in, to see that it is found."""

    config: TrainConfig
    parts: Parts = OURS
    model: Callable[[TrainConfig], Model] = model_of
    grid: Grid | None = None


def inspected(subject: Subject, *, steps: int) -> Findings:
    """Everything that is wrong with a run, in the order in which it was found; on a grid, on rank 0."""
    findings, config = Findings(), subject.config
    data = data_of(config)
    assessment = assess(config, shape_of(config), data)
    for finding in refused(assessment):
        findings.add(finding)
    if not assessment.allowed:
        return findings
    model, drift = subject.model(config), Drift()
    blocks: dict[str, Sampled] = {}
    with debug.checking(findings) as checks:
        try:
            ranks = ALONE if subject.grid is None else ranks_of(subject.grid, model)
            trainer = Trainer(config, model, data, subject.parts, ranks)
            trainer.observers.append(
                lambda _, found: blocks.update({name: sampled(each) for name, each in found.items() if each.numel()})
            )
            Agreement(trainer, findings)
            for _ in range(min(steps, trainer.run.steps)):
                record = trainer.step()
                checks.step_ended()
                for alarm in drift.observe(record.step, loss=record.loss, norm=record.norm, blocks=blocks):
                    findings.add(_of_alarm(alarm))
        except watch.BreachError as breach:
            findings.add(_of_breach(breach))
    return findings


def refused(assessment: Assessment) -> list[Finding]:
    """What a plan is refused for, by the keys that would mend it."""
    found = []
    for refusal, change in zip(assessment.refusals, assessment.changes, strict=True):
        keys = [key for settings in change.settings for key in settings]
        found.append(
            Finding(
                granularity="config",
                place=keys[0] if keys else "plan",
                contract=refusal.obligation,
                message=f"{refusal.message}; change: {change}",
            )
        )
    return found


def _of_alarm(alarm: Alarm) -> Finding:
    place = block_of(alarm.brick) if alarm.granularity == "block" else alarm.brick
    return Finding(granularity=alarm.granularity, place=place, contract=alarm.kind, message=str(alarm))


def _of_breach(breach: watch.BreachError) -> Finding:
    granularity = "config" if breach.contract in _OF_CONFIG else "block" if breach.about else "step"
    place = (
        block_of(breach.about.removeprefix("exp_avg.").removeprefix("exp_avg_sq.")) if granularity == "block" else ""
    )
    return Finding(
        granularity=granularity,
        place=place or breach.about or "trainer",
        contract=breach.contract,
        message=f"step {breach.step}: {breach.message}",
    )
