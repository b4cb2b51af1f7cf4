"""Whether every row of a component is one expression: traced for each format, batch and launch, and compared as
numbers.

Knows no operator. Says no as soon as two rows differ, a row reads another row, or an element is not stored once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import torch

from samebits.checker.tracing.interpreter import Tracer
from samebits.checker.tracing.nodes import RefusedError
from samebits.contracts.traced import SHARED, Case, Output
from samebits.native.launch_numbers import launching

# Few, so that programs which stay on a multiprocessor walk over several tiles even here.
MULTIPROCESSORS: Final = 2


class Rows:
    """What each place of a row was found to hold, the first time and ever since."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.nodes: dict[tuple[str, int], int] = {}
        self.loose: set[str] = set()
        self.count = 0

    def add(self, name: str, output: Output, words: str) -> None:
        """Every row of one result, against all rows before it."""
        cells, stored = self.tracer.memory.result(output.tensor)
        if not stored.all():
            raise RefusedError(f"{name}, {words}: {int((~stored).sum())} of {stored.size} elements are never stored")
        foreign = (cells["row"] != output.rows) & (cells["row"] != SHARED)
        if foreign.any():
            row, other = int(output.rows[foreign][0]), int(cells["row"][foreign][0])
            read = f"row {other}" if other >= 0 else "other rows too"
            raise RefusedError(f"{name}, {words}: row {row} reads {read}")
        places, numbers = output.places.reshape(-1).tolist(), cells["id"].reshape(-1).tolist()
        bare = {number: self.tracer.nodes.bare(number) for number in set(numbers)}
        if any(one != other for one, other in bare.items()):
            self.loose.add(name)
        for at, (place, number) in enumerate(zip(places, numbers, strict=True)):
            if self.nodes.setdefault((name, place), bare[number]) != bare[number]:
                row = int(output.rows.reshape(-1)[at])
                raise RefusedError(f"{name}, {words}: row {row} is another expression at place {place}")
        self.count += len(np.unique(output.rows))

    def digest(self) -> str:
        text = "".join(
            f"{name} {place} {self.tracer.nodes.digest(node)}\n" for (name, place), node in sorted(self.nodes.items())
        )
        return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def without_gpu() -> Iterator[None]:
    """The components' launch code runs unchanged on tensors in main memory."""
    current, properties = torch.cuda.current_device, torch.cuda.get_device_properties
    torch.cuda.current_device = lambda: None  # type: ignore[assignment,return-value]
    here: Any = SimpleNamespace(multi_processor_count=MULTIPROCESSORS)
    torch.cuda.get_device_properties = lambda *_: here
    try:
        yield
    finally:
        torch.cuda.current_device, torch.cuda.get_device_properties = current, properties


def trace(tracer: Tracer, case: Case, format: str, batch: Any, launch: object, rows: Rows) -> None:
    tracer.forget()
    tracer.memory.shifted = tracer.fault == "neighbour"
    words = f"{case.words}, {format}, batch {batch}, {launch or 'the launch that the component chooses'}"
    try:
        with without_gpu(), launching(**({} if launch is None else {"launch": launch})):
            outputs = case.call(tracer.memory, getattr(torch, format), batch)
    except RefusedError as error:
        raise RefusedError(f"{words}: {error}") from None
    for name, output in outputs.items():
        rows.add(name, output, words)


def twins(tracer: Tracer, case: Case, format: str, rows: Rows) -> int:
    """The last batch once more with each planted fault: how many of them are refused."""
    caught = 0
    for fault in case.faults:
        tracer.fault = fault
        try:
            trace(tracer, case, format, case.batches[-1], None, rows)
        except RefusedError:
            caught += 1
        finally:
            tracer.fault = ""
    return caught


def judge(tracer: Tracer, cases: Sequence[Case]) -> dict[str, Any]:
    """The facts of a proof: every case in every format, each with its twins."""
    found: dict[str, Any] = {
        "cases": 0,
        "expected": 0,
        "planted": 0,
        "caught": 0,
        "witness": "",
        "digest": "",
        "bound": "",
    }
    digests, bounds = [], []
    for case in cases:
        loose: set[str] = set()
        counts = []
        for format in case.formats:
            launches = case.launches(format)
            counts.append(len(launches))
            found["expected"] += len(launches) * sum(map(case.rows, case.batches))
            tracer.begin(finite=case.finite, branch=case.branch)
            rows = Rows(tracer)
            try:
                for launch in launches:
                    for batch in case.batches:
                        trace(tracer, case, format, batch, launch, rows)
            except RefusedError as error:
                return {**found, "cases": found["cases"] + rows.count, "witness": str(error)}
            found["cases"] += rows.count
            loose |= rows.loose
            digests.append(rows.digest())
            found["planted"] += len(case.faults)
            found["caught"] += twins(tracer, case, format, rows)
        bounds.append(_bound(case, counts, sorted(loose)))
    found["bound"] = "; ".join(bounds)
    found["digest"] = hashlib.sha256(" ".join(digests).encode()).hexdigest()
    return found


def _bound(case: Case, counts: Sequence[int], loose: Sequence[str]) -> str:
    launches = "/".join(map(str, counts))
    words = f"{case.words}: {', '.join(case.formats)}, batches {_list(case.batches)}, {launches} launches"
    if case.finite:
        words += ", values finite"
    if loose:
        words += f", {' and '.join(loose)} up to the sign of a zero"
    return words


def _list(batches: Sequence[Any]) -> str:
    return " ".join(str(batch).replace(" ", "") for batch in batches)
