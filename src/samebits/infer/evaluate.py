"""An evaluation from files to metrics: every document once, any batch size, killed and resumed: one digest.

What a document scores depends on it and the weights alone. Knows nothing of how it is shown."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from samebits.infer.evaluate_journal import Journal, Key, Likelihoods, line, opened
from samebits.infer.evaluate_tasks import Document, Task
from samebits.infer.scoring import Scorer
from samebits.model import Model
from samebits.model.tokenizer import Tokenizer
from samebits.parallel.agreeing import digest_of
from samebits.records.durable import put_in_one_move
from samebits.records.report import UnjudgedError

RESULTS: Final = "results.json"
# Batches between one entry in the journal and the next: a kill loses no more.
BATCHES_AT_ONCE: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What is to be evaluated."""

    model: Model
    words: Tokenizer
    tasks: tuple[Task, ...]
    longest: int
    """Tokens of the longest window, context and continuation."""

    def __post_init__(self) -> None:
        names = [task.name for task in self.tasks]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"evaluate: {names.count(name)} files are named {name}; allowed: a name each")
        if not names:
            raise ValueError("evaluate: there is nothing to evaluate; allowed: at least one --task or --text")

    def facts(self) -> dict[str, Any]:
        """All that decides a loglikelihood, and what decides which there are."""
        shape = json.dumps(asdict(self.model.config), sort_keys=True)
        return {
            "format": 1,
            "model": digest_of(self.model.weights.items()),
            "config": f"sha256:{hashlib.sha256(shape.encode()).hexdigest()}",
            "tokenizer": f"sha256:{self.words.digest()}",
            "max_length": self.longest,
            "tasks": {task.name: {"kind": task.kind, "file": task.digest} for task in self.tasks},
            "documents": {task.name: len(task.documents) for task in self.tasks},
        }

    def documents(self) -> dict[Key, Document]:
        return {(task.name, number): each for task in self.tasks for number, each in enumerate(task.documents)}


def evaluate(
    evaluation: Evaluation,
    *,
    batch_size: int,
    folder: Path | None = None,
    resume: bool = False,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Scores every document and writes metrics and digest; without a folder nothing is written."""
    scorer, facts = Scorer(evaluation.model, batch_size=batch_size), evaluation.facts()
    kept = nullcontext(None) if folder is None else opened(folder, facts, resume=resume)
    with kept as journal:
        found = _scored(evaluation, scorer, journal, tell)
        results = {**facts, "results": _metrics(evaluation, found), "digest": digest(found)}
        if folder is not None:
            put_in_one_move(folder / RESULTS, (json.dumps(results, indent=2, allow_nan=False) + "\n").encode())
    return results


def _scored(
    evaluation: Evaluation, scorer: Scorer, journal: Journal | None, tell: Callable[[int, int], None]
) -> dict[Key, Likelihoods]:
    documents = evaluation.documents()
    found = {} if journal is None else {key: value for key, value in journal.found.items() if key in documents}
    waiting = [key for key in documents if key not in found]
    while waiting:
        tell(len(found), len(documents))
        some = _some(waiting, documents, BATCHES_AT_ONCE * scorer.batch_size)
        waiting = waiting[len(some) :]
        try:
            scored = iter(scorer.score([pair for key in some for pair in documents[key].pairs]))
        except ArithmeticError as error:
            first, last = (f"{name}:{number}" for name, number in (some[0], some[-1]))
            raise UnjudgedError(f"documents {first} to {last}, from 0: {error}") from None
        now = {key: tuple(next(scored).loglikelihood for _ in documents[key].pairs) for key in some}
        if journal is not None:
            journal.add(now)
        found |= now
    tell(len(found), len(documents))
    return {key: found[key] for key in documents}


def _some(waiting: Sequence[Key], documents: dict[Key, Document], pairs: int) -> list[Key]:
    """The next documents that have so many pairs, at least one."""
    some, count = [waiting[0]], len(documents[waiting[0]].pairs)
    for key in waiting[1:]:
        count += len(documents[key].pairs)
        if count > pairs:
            break
        some.append(key)
    return some


def _metrics(evaluation: Evaluation, found: dict[Key, Likelihoods]) -> dict[str, dict[str, float | None]]:
    """By task; None for what is infinite, which JSON has no number for."""
    every = {
        task.name: task.metrics(task.documents, [found[task.name, number] for number in range(len(task.documents))])
        for task in evaluation.tasks
    }
    return {
        name: {metric: value if math.isfinite(value) else None for metric, value in metrics.items()}
        for name, metrics in every.items()
    }


def digest(found: dict[Key, Likelihoods]) -> str:
    """Of every loglikelihood, to the bit."""
    state = hashlib.sha256()
    for key, values in found.items():
        state.update(line(key, values).encode())
    return f"sha256:{state.hexdigest()}"
