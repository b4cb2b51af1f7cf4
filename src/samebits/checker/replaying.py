"""Replays receipts: a random sample of those that can run here is run again and must give the same result.

This is what an invented receipt cannot survive: its id can be made to fit, the bits it claims cannot. The sample is
fixed by a seed; what runs within the given seconds runs, the cheapest first. Writes nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from samebits.checker.present import where
from samebits.checker.proving import Task, attempt, tasks
from samebits.checker.source_facts import RUNNING
from samebits.contracts.receipts import FALSE, Compared, Receipt
from samebits.contracts.registry import Component

REPRODUCED: Final = "reproduced"
UNJUDGED: Final = "could not be judged"
Runner = Callable[[Task, Mapping[str, Component], int], "list[Receipt | str]"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """One receipt, run again."""

    receipt: Receipt
    verdict: str
    """reproduced, false, or could not be judged."""
    detail: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.receipt}: {self.verdict}{f': {self.detail}' if self.detail else ''}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One task, and the receipts that it would give again."""

    task: Task
    receipts: tuple[Receipt, ...]

    @property
    def seconds(self) -> float:
        return max(each.seconds for each in self.receipts)


def candidates(components: Mapping[str, Component], found: Iterable[Compared]) -> list[Candidate]:
    """Every task with receipts that count and that can run here; those of several machines apart."""
    by_task: dict[tuple[str, int, str, str, str, int], list[Receipt]] = {}
    known: dict[tuple[str, int, str, str], Task] = {}
    for each in found:
        receipt = each.receipt
        if each.counts and receipt.contract in components and _comparable(receipt):
            task = _task(components[receipt.contract], receipt)
            if task is not None and not task.lacks():
                name = (receipt.contract, task.level, task.backend, task.name)
                known[name] = task
                by_task.setdefault((*name, receipt.machine, receipt.seed), []).append(receipt)
    return [Candidate(task=known[key[:4]], receipts=tuple(by_task[key])) for key in sorted(by_task)]


def _comparable(receipt: Receipt) -> bool:
    """Whether a run here must give the same result: kernels and draws have the same bits anywhere, but a prover of
    another version may word its queries differently."""
    if receipt.method in (*RUNNING, "types"):
        return True
    return receipt.where == where(receipt.backend, receipt.method)


def _task(component: Component, receipt: Receipt) -> Task | None:
    """The task that gives a receipt of this kind."""
    for task in tasks(component, (receipt.level,)):
        if task.level == 4 and (task.entry is None or task.entry.by != receipt.by):
            continue
        if (receipt.obligation, receipt.backend) in task.speaks_for():
            return task
    return None


def sampled(listed: Sequence[Candidate], seed: str, most: int | None, seconds: float) -> list[Candidate]:
    """At most so many at random, as far as their own seconds fit together; the cheapest first."""
    shuffled = list(listed)
    random.Random(seed).shuffle(shuffled)
    chosen, spent = list[Candidate](), 0.0
    for each in shuffled:
        if (most is None or len(chosen) < most) and spent + each.seconds <= seconds:
            chosen.append(each)
            spent += each.seconds
    return sorted(chosen, key=lambda each: each.seconds)


def replay(
    chosen: Sequence[Candidate], components: Mapping[str, Component], seconds: float, run: Runner = attempt
) -> Iterator[Replay]:
    """Runs what was chosen until the seconds are over; what is left out is not told."""
    started = time.perf_counter()
    for number, each in enumerate(chosen):
        begun = time.perf_counter()
        if number and begun - started >= seconds:
            return
        again = run(each.task, components, each.receipts[0].seed)
        took = time.perf_counter() - begun
        for receipt in each.receipts:
            verdict, detail = judged(receipt, again)
            yield Replay(receipt=receipt, verdict=verdict, detail=detail, seconds=round(took, 3))


def judged(receipt: Receipt, again: Sequence[Receipt | str]) -> tuple[str, str]:
    """Whether a receipt is what a run here gives, and if not, what differs."""
    made = [each for each in again if isinstance(each, Receipt)]
    spoken = [each for each in made if (each.obligation, each.backend) == (receipt.obligation, receipt.backend)]
    if not spoken and len(made) < len(again):
        return UNJUDGED, "; ".join(each for each in again if isinstance(each, str))
    if not spoken:
        return FALSE, "a run here gives no receipt for it"
    differs = _difference(receipt, spoken[0])
    return (FALSE, differs) if differs else (REPRODUCED, "")


def _difference(receipt: Receipt, again: Receipt) -> str:
    names = ["by", "holds", "calls", "planted", "bound", "result"]
    if receipt.where == again.where:
        # How many launches there are to compare is the machine's own.
        names += ["cases", "classes"]
    for name in names:
        stated, found = getattr(receipt, name), getattr(again, name)
        if stated != found:
            stated, found = (str(each)[:12] if name == "result" else each for each in (stated, found))
            return f"{name} is {stated} in the receipt and {found} in a run here"
    for name in ("killed", "classes"):
        listed, met = (", ".join(sorted(getattr(each, name))) or "none" for each in (receipt, again))
        if listed != met:
            return f"{name} {listed} in the receipt and {met} here"
    return ""
