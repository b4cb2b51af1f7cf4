"""Measures a case: bits first, then both sides in turns; a ratio is the time of the best alternative over ours."""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from samebits.bench.cases import Case, Planned, Setting
from samebits.bench.cuda_timing import Calls
from samebits.bench.timing import call_seconds, kernel_seconds

HOLDS, DIFFERS, UNJUDGED = "holds", "does not hold", "could not be judged"


@dataclass(frozen=True, slots=True)
class Line:
    """A case as measured. Where bits differ, or nothing stands beside ours, there is no ratio."""

    operator: str
    model: str
    sizes: str
    size: int
    bits: str
    detail: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    """Of a call by side, "samebits" among them; of its kernels on a GPU."""
    call_seconds: dict[str, float] = field(default_factory=dict)
    """On a GPU: of calls made one after the other, the host's share included."""
    speed: float | None = None
    unit: str = ""

    @property
    def best(self) -> str | None:
        others = {name: seconds for name, seconds in self.seconds.items() if name != "samebits"}
        return min(others, key=others.__getitem__) if others else None

    @property
    def ratio(self) -> float | None:
        return self._ratio(self.seconds)

    @property
    def call_ratio(self) -> float | None:
        return self._ratio(self.call_seconds)

    def _ratio(self, seconds: dict[str, float]) -> float | None:
        others = [each for name, each in seconds.items() if name != "samebits"]
        return min(others) / seconds["samebits"] if others else None

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "best": self.best, "ratio": self.ratio, "call_ratio": self.call_ratio}


def measured(cases: Iterable[Planned], setting: Setting, budget: float, rounds: int) -> Iterator[Line]:
    """Each case in its turn. `budget`: seconds of one measurement of one side."""
    for each in cases:
        torch.manual_seed(0)
        yield _measure(each, setting, budget, rounds)
        gc.collect()


def _measure(planned: Planned, setting: Setting, budget: float, rounds: int) -> Line:
    def line(bits: str, **found: Any) -> Line:
        return Line(planned.operator, planned.model, planned.sizes, planned.size, bits, **found)

    try:
        case = planned.make(setting)
        difference = case.difference()
    except (RuntimeError, MemoryError) as error:
        return line(UNJUDGED, detail=_first_line(error))
    if difference is not None:
        return line(DIFFERS, detail=f"a part alone against the whole: {difference}; nothing is timed")
    sides, refused = _sides(case)
    if len(sides) == 1:
        return line(UNJUDGED, detail=f"no alternative runs here: {refused}")
    try:
        calls = call_seconds(sides, budget, rounds) if setting.device.type == "cuda" else {}
        seconds = kernel_seconds(sides, setting.device, budget, rounds) if case.captured or not calls else calls
    except (RuntimeError, MemoryError) as error:
        return line(UNJUDGED, detail=_first_line(error))
    scale = {"TFLOP/s": 1e12, "GB/s": 1e9}[case.unit]
    speed = case.work / seconds["samebits"] / scale
    return line(HOLDS, detail=refused, seconds=seconds, call_seconds=calls, speed=speed, unit=case.unit)


def _sides(case: Case) -> tuple[dict[str, Calls], str]:
    """Ours and the alternatives that run, and what was refused."""
    sides, refused = {"samebits": case.ours}, []
    for name, calls in case.theirs.items():
        try:
            calls[0]()
        except (RuntimeError, MemoryError) as error:
            refused.append(f"{name}: {_first_line(error)}")
        else:
            sides[name] = calls
    return sides, "; ".join(refused)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]


@dataclass(frozen=True, slots=True)
class Summary:
    """An operator over all its cases."""

    operator: str
    cases: int
    mean: float
    """Geometric."""
    lowest: float
    where: str
    call_mean: float | None


def summaries(lines: Sequence[Line]) -> list[Summary]:
    found = []
    for operator in dict.fromkeys(each.operator for each in lines):
        timed = [each for each in lines if each.operator == operator and each.ratio is not None]
        if timed:
            lowest = min(timed, key=lambda each: each.ratio or 0.0)
            calls = _mean(timed, lambda each: each.call_ratio)
            mean = _mean(timed, lambda each: each.ratio)
            where = f"{lowest.model} {lowest.sizes}"
            found.append(Summary(operator, len(timed), mean or 0.0, lowest.ratio or 0.0, where, calls))
    return found


def _mean(lines: Sequence[Line], ratio: Callable[[Line], float | None]) -> float | None:
    found = [value for value in map(ratio, lines) if value]
    return math.exp(statistics.fmean(map(math.log, found))) if found else None
