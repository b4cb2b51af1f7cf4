"""Measures a case: bits first, then both sides in turns; a ratio is the time of the best alternative over ours."""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from samebits.bench.cases import Case, EndToEnd, Planned, Setting, Side
from samebits.bench.cuda_timing import Calls, copy_bandwidth
from samebits.bench.memory import peak_of
from samebits.bench.timing import call_seconds, kernel_seconds, turn_seconds
from samebits.records.report import UnjudgedError

HOLDS, DIFFERS, UNJUDGED = "holds", "does not hold", "could not be judged"
# What says that a side does not run here: sizes that it refuses, memory, a package that is not installed.
CANNOT_RUN = (RuntimeError, MemoryError, UnjudgedError)


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
    peak_bytes: dict[str, int] = field(default_factory=dict)
    """Of a whole model on a GPU: the most memory that a side took."""
    of_bandwidth: float | None = None
    """Likewise: the time in which a copy moves what a step reads at least, over the time of the step."""

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
    """Each case in its turn. `budget`: seconds of one measurement of one side of an operator."""
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
        if difference is not None:
            return line(DIFFERS, detail=f"{difference}; nothing is timed")
        found = (
            _operator(case, setting, budget, rounds) if isinstance(case, Case) else _whole(case, setting.device, rounds)
        )
    except CANNOT_RUN as error:
        return line(UNJUDGED, detail=_first_line(error))
    return line(HOLDS, **found)


def _operator(case: Case, setting: Setting, budget: float, rounds: int) -> dict[str, Any]:
    sides, refused = _sides(case)
    calls = call_seconds(sides, budget, rounds) if setting.device.type == "cuda" else {}
    seconds = kernel_seconds(sides, setting.device, budget, rounds) if case.captured or not calls else calls
    scale = {"TFLOP/s": 1e12, "GB/s": 1e9}[case.unit]
    speed = case.work / seconds["samebits"] / scale
    return {"detail": refused, "seconds": seconds, "call_seconds": calls, "speed": speed, "unit": case.unit}


def _whole(case: EndToEnd, device: torch.device, rounds: int) -> dict[str, Any]:
    bandwidth = copy_bandwidth() if case.bytes_read and device.type == "cuda" else None
    ours, peak = peak_of(case.ours, device)
    sides: dict[str, Side] = {"samebits": ours}
    peaks, refused = {"samebits": peak}, []
    for name, make in case.theirs.items():
        try:
            sides[name], peaks[name] = peak_of(make, device)
        except CANNOT_RUN as error:
            refused.append(f"{name}: {_first_line(error)}")
    _require_one_beside(sides, "; ".join(refused))
    seconds = turn_seconds(sides, rounds)
    return {
        "detail": "; ".join(refused),
        "seconds": seconds,
        "speed": case.tokens / seconds["samebits"],
        "unit": "tokens/s",
        "peak_bytes": {name: peak for name, peak in peaks.items() if case.peaks and peak is not None},
        "of_bandwidth": (case.bytes_read or 0) / bandwidth / seconds["samebits"] if bandwidth else None,
    }


def _require_one_beside(sides: Sized, refused: str) -> None:
    if len(sides) == 1:
        raise UnjudgedError(f"no alternative runs here: {refused}")


def _sides(case: Case) -> tuple[dict[str, Calls], str]:
    """Ours and the alternatives that run, and what was refused."""
    sides, refused = {"samebits": case.ours}, []
    for name, calls in case.theirs.items():
        try:
            calls[0]()
        except CANNOT_RUN as error:
            refused.append(f"{name}: {_first_line(error)}")
        else:
            sides[name] = calls
    _require_one_beside(sides, "; ".join(refused))
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
