"""A training run as one HTML page that needs nothing else: curves, alarms, where time went, settings, digests.

Knows what the run's folder holds, and computes nothing of it again. What a run rests on is run_evidence.py's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import jinja2

from samebits.cli.run_pictures import curve, flames
from samebits.trace.spans import Span
from samebits.trace.summary import Row, summary
from samebits.train import events
from samebits.train.step_traces import newest

if TYPE_CHECKING:
    from samebits.cli.run_evidence import Evidence

TEMPLATES: Final = Path(__file__).parent / "templates"
TRACE: Final = "trace.jsonl"
CURVES: Final = {
    "loss": "loss",
    "norm": "gradient norm, before clipping",
    "rate": "learning rate",
    "tokens_per_second": "tokens a second",
}
# Rows of a table: of alarms the first, for what comes later often follows, and of checkpoints the last.
ROWS: Final = 100
# Rows of a table of kernels or blocks, the longest.
BUSIEST: Final = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Kernels or blocks, and where their time went."""

    title: str
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]
    more: int
    """Rows that are left out."""


def render(folder: Path, *, with_evidence: bool = False) -> str:
    """The page of a run; with what it rests on, where that is asked for: some seconds of reading receipts."""
    if not (folder / events.NAME).is_file():
        raise ValueError(f"{folder}: there is no {events.NAME}; allowed: the folder of a training run")
    with _reading(folder / events.NAME):
        log = events.read(folder)
        of_kind = {kind: [each for each in log if each["event"] == kind] for kind in events.KINDS}
    if not of_kind["start"]:
        raise ValueError(f"{folder}: {events.NAME} has no start; allowed: the folder of a training run")
    spans = _spans(folder)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found = summary(spans)
    with _reading(folder / events.NAME):
        settings = dict(of_kind["start"][-1].get("settings", {}).items())
    evidence = _evidence(settings) if with_evidence else None
    with _reading(folder / events.NAME):
        return environment.get_template("run.html").render(
            name=folder.resolve().name,
            start=of_kind["start"][-1],
            steps=len(of_kind["step"]),
            curves=[curve(name, words, of_kind["step"], of_kind["alarm"]) for name, words in CURVES.items()],
            alarms=of_kind["alarm"],
            breaches=of_kind["breach"],
            checkpoints=of_kind["checkpoint"],
            shown=ROWS,
            end=of_kind["end"][-1] if of_kind["end"] else None,
            began=_moment(of_kind["start"][0]["time"]),
            step=flames(spans) if spans else None,
            tables=[_table("Kernels", found.of("kernel")), _table("Blocks", found.of("block"))],
            evidence=evidence,
        )


def _evidence(settings: dict[str, Any]) -> Evidence:
    from samebits.cli.run_evidence import evidence

    return evidence(settings)


def _moment(seconds: float) -> str:
    return f"{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds):%Y-%m-%d %H:%M} UTC"


def _table(title: str, rows: list[Row]) -> Table:
    """The longest first; a speed that no row has gets no column."""
    numbers = {
        "count": [f"{each.count:,}" for each in rows],
        "own ms": [f"{each.own_milliseconds:.2f}" for each in rows],
        "share": [f"{each.share:.1%}" for each in rows],
        "GB/s": [_speed(each.gigabytes_per_second) for each in rows],
        "GFLOP/s": [_speed(each.gigaflops_per_second) for each in rows],
    }
    kept = {name: column for name, column in numbers.items() if any(column)}
    cells = [(row.name, *each) for row, *each in zip(rows, *kept.values(), strict=True)]
    return Table(title=title, heads=("name", *kept), rows=cells[:BUSIEST], more=max(0, len(cells) - BUSIEST))


def _speed(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _spans(folder: Path) -> list[Span]:
    """Those of a recording beside the run, or of the last step that the run recorded itself; else none."""
    path = folder / TRACE if (folder / TRACE).is_file() else newest(folder)
    if path is None:
        return []
    known = {"span", "granularity", "number", "parent", "thread", "began", "ended", "device"}
    found = []
    with _reading(path):
        # A recording that was killed can end within a line; of that one nothing is known.
        for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
            given = json.loads(line)
            if "span" in given:
                facts = {name: value for name, value in given.items() if name not in known}
                numbers = {name: _number(given, name) for name in ("number", "parent", "thread", "began", "ended")}
                device = None if given.get("device") is None else _number(given, "device")
                name, granularity = _text(given, "span"), _text(given, "granularity")
                found.append(Span(name, granularity, **numbers, device=device, facts=facts))
    return found


def _number(given: dict[str, Any], name: str) -> int:
    value = given[name]
    if type(value) is not int or not 0 <= value < 2**64:
        raise ValueError(f"{name} is {value!r:.40}, and no whole number of 64 bits")
    return value


def _text(given: dict[str, Any], name: str) -> str:
    if type(given[name]) is not str:
        raise ValueError(f"{name} is {given[name]!r:.40}, and no text")
    return str(given[name])


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What is wrong inside of a file is told with the file's name."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, jinja2.UndefinedError) as error:
        raise ValueError(
            f"{path}: cannot be read: {type(error).__name__}: {error}; allowed: a JSON object a line, as samebits"
            " wrote them"
        ) from error
