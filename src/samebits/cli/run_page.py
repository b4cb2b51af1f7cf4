"""A training run as one HTML page that needs nothing else: curves, alarms, where time went, settings, digests.

Knows what the run's folder holds, and computes nothing of it again. What a run rests on is run_evidence.py's."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import jinja2
from markupsafe import Markup

from samebits.trace.spans import Span
from samebits.trace.summary import Row, summary
from samebits.train import events
from samebits.train.step_traces import newest

if TYPE_CHECKING:
    from samebits.cli.run_evidence import Evidence

TEMPLATES: Final = Path(__file__).parent / "templates"
TRACE: Final = "trace.jsonl"
# Points of a curve: more than a screen has columns would only make the page heavy.
POINTS: Final = 600
WIDTH, HEIGHT, LEFT, BOTTOM = 640, 220, 64, 26
CURVES: Final = {
    "loss": "loss",
    "norm": "gradient norm, before clipping",
    "rate": "learning rate",
    "tokens_per_second": "tokens a second",
}
# Rows of a table: of alarms the first, for what comes later often follows, and of checkpoints the last.
ROWS: Final = 100
# Spans of the flame view, longest first within their parent.
FLAMES: Final = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One number of every step."""

    name: str
    words: str
    drawing: Markup
    last: str


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
    found, flames = summary(spans), _flames(spans) if spans else None
    with _reading(folder / events.NAME):
        settings = dict(of_kind["start"][-1].get("settings", {}).items())
    evidence = _evidence(settings) if with_evidence else None
    with _reading(folder / events.NAME):
        return environment.get_template("run.html").render(
            name=folder.resolve().name,
            start=of_kind["start"][-1],
            steps=len(of_kind["step"]),
            curves=[_curve(name, words, of_kind["step"], of_kind["alarm"]) for name, words in CURVES.items()],
            alarms=of_kind["alarm"],
            breaches=of_kind["breach"],
            checkpoints=of_kind["checkpoint"],
            shown=ROWS,
            end=of_kind["end"][-1] if of_kind["end"] else None,
            kernels=found.of("kernel")[:20],
            blocks=found.of("block")[:20],
            flames=flames,
            row=_row,
            evidence=evidence,
        )


def _evidence(settings: dict[str, Any]) -> Evidence:
    from samebits.cli.run_evidence import evidence

    return evidence(settings)


def _row(row: Row) -> tuple[str, ...]:
    speeds = (row.gigabytes_per_second, row.gigaflops_per_second)
    shown = ("" if each is None else f"{each:.1f}" for each in speeds)
    return row.name, f"{row.count:,}", f"{row.own_milliseconds:.2f}", f"{row.share:.1%}", *shown


def _curve(name: str, words: str, steps: Sequence[dict[str, Any]], alarms: Sequence[dict[str, Any]]) -> Curve:
    points = [(each["step"], each[name]) for each in steps if isinstance(each.get(name), int | float)]
    last = f"{points[-1][1]:.6g}" if points else "none"
    return Curve(name=name, words=words, drawing=_drawn(points, [each["step"] for each in alarms]), last=last)


def _drawn(points: Sequence[tuple[int, float]], marked: Sequence[int]) -> Markup:
    """A line over the steps, with the steps of alarms marked."""
    if not points:
        return Markup('<p class="soft">nothing was logged</p>')
    thinned = points[:: max(1, len(points) // POINTS)]
    thinned = [*thinned, points[-1]] if thinned[-1] != points[-1] else thinned
    first, last = points[0][0], points[-1][0]
    low, high = min(value for _, value in points), max(value for _, value in points)
    span_x, span_y = max(last - first, 1), (high - low) or max(abs(high), 1e-30)

    def x(step: float) -> float:
        return LEFT + (step - first) / span_x * (WIDTH - LEFT - 8)

    def y(value: float) -> float:
        return 8 + (high - value) / span_y * (HEIGHT - BOTTOM - 16)

    line = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in thinned)
    # Alarms that fall on one place of the screen are one line.
    places = dict.fromkeys(f"{x(step):.1f}" for step in marked if first <= step <= last)
    marks = "".join(
        f'<line class="alarm" x1="{place}" x2="{place}" y1="4" y2="{HEIGHT - BOTTOM}"/>' for place in places
    )
    labels = "".join(
        f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.4g}</text>' for value in {low, high}
    )
    feet = (
        f'<text x="{LEFT}" y="{HEIGHT - 6}">step {first}</text>'
        f'<text x="{WIDTH - 8}" y="{HEIGHT - 6}" text-anchor="end">{last}</text>'
    )
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{marks}<polyline points="{line}"/>{labels}{feet}</svg>'
    )


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


def _flames(spans: Sequence[Span]) -> Markup:
    """The last step of a recording: a bar a span, below the span that it is inside of."""
    steps = [each for each in spans if each.granularity == "step"]
    whole = steps[-1] if steps else max(spans, key=lambda each: each.ended - each.began)
    depth, shown = {whole.number: 0}, [whole]
    for span in sorted(spans, key=lambda each: each.number):
        if span.parent in depth and span.number not in depth:
            depth[span.number] = depth[span.parent] + 1
            shown.append(span)
    shown = sorted(shown, key=lambda each: each.began - each.ended)[:FLAMES]
    wide, tall, length = 960, 22, max(1, whole.ended - whole.began)
    bars = []
    for span in shown:
        x, width = (span.began - whole.began) / length * wide, max(0.6, (span.ended - span.began) / length * wide)
        y, words = depth[span.number] * tall, html.escape(f"{span.name}: {(span.ended - span.began) / 1e6:.2f} ms")
        # Cut as text: an escaped name could be cut within an entity.
        shown_name = html.escape(span.name[: int(width / 7)])
        label = f'<text x="{x + 4:.1f}" y="{y + 15}">{shown_name}</text>' if width > 40 else ""
        bar = f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{tall - 2}"><title>{words}</title></rect>'
        bars.append(f'<g class="{html.escape(span.granularity)}">{bar}{label}</g>')
    height = (max(depth[each.number] for each in shown) + 1) * tall
    return Markup(f'<svg viewBox="0 0 {wide} {height}" role="img">{"".join(bars)}</svg>')
