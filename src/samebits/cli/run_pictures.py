"""The pictures of a run's page: a curve of every number that a step logs, and one recorded step as bars.

Knows numbers and spans, and no file. Words stand beside a picture, not in it: a phone shows them at their own size."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from samebits.trace.spans import Span

# Ranges of steps that a curve tells apart: more than a screen has columns would only make the page heavy.
RANGES: Final = 300
WIDTH, HEIGHT, EDGE = 600, 150, 5
# Spans of the flame view, longest first.
FLAMES: Final = 400
# In the flame view's own units; its page shows it at no less than this size.
WIDE, TALL, LETTER = 960, 22, 7
Point = tuple[int, float | None]
"""A step and its number; None: it was not finite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One number of every step."""

    words: str
    drawing: Markup | None
    """None: there is nothing to draw."""
    last: str
    high: str
    low: str
    first_step: int
    last_step: int
    lost: str
    """Which steps had a number that was not finite; "": none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flames:
    """One recorded step, a bar a span."""

    words: str
    drawing: Markup
    hidden: int
    """Spans that were too short to be drawn."""


def curve(name: str, words: str, steps: Sequence[dict[str, Any]], alarms: Sequence[dict[str, Any]]) -> Curve:
    logged = [each for each in steps if each.get(name) is not None]
    points = [(each["step"], _finite(each[name])) for each in logged]
    lost = [step for step, value in points if value is None]
    values = [value for _, value in points if value is not None]
    high, low = (_number(max(values)), _number(min(values))) if values else ("", "")
    said = f"{words}: between {low} and {high} from step {points[0][0]} to {points[-1][0]}" if values else words
    return Curve(
        words=words,
        drawing=_drawn(points, [each["step"] for each in alarms], said) if values else None,
        last=_last(logged[-1][name]) if logged else "",
        high=high,
        low=low,
        first_step=points[0][0] if points else 0,
        last_step=points[-1][0] if points else 0,
        lost=f"not finite at {len(lost)} step{'s' if len(lost) > 1 else ''}, first at step {lost[0]}" if lost else "",
    )


def _finite(value: object) -> float | None:
    """The log says in words what is not finite."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def _last(value: object) -> str:
    found = _finite(value)
    if found is None:
        return str(value)
    return _number(found) if abs(found) >= 1000 else f"{found:.6g}"


def _drawn(points: Sequence[Point], marked: Sequence[int], words: str) -> Markup:
    """A line over the steps, broken where a number was not finite, with the steps of alarms marked."""
    first, last = points[0][0], points[-1][0]
    values = [value for _, value in points if value is not None]
    low, high = min(values), max(values)
    span_x, span_y = max(last - first, 1), (high - low) or 1.0

    def x(step: float) -> str:
        return f"{EDGE + (step - first) / span_x * (WIDTH - 2 * EDGE):.1f}"

    def y(value: float) -> str:
        return f"{EDGE + (high - value) / span_y * (HEIGHT - 2 * EDGE):.1f}"

    rules = "".join(
        f'<line class="rule" x1="0" x2="{WIDTH}" y1="{place}" y2="{place}"/>' for place in {y(low), y(high)}
    )
    # Alarms that fall on one place of the screen are one line.
    places = dict.fromkeys(x(step) for step in marked if first <= step <= last)
    marks = "".join(f'<line class="alarm" x1="{place}" x2="{place}" y1="0" y2="{HEIGHT}"/>' for place in places)
    lines = "".join(
        # A single point is a line to itself: its round end is a dot.
        f'<polyline points="{" ".join(f"{x(step)},{y(value)}" for step, value in (part if part[1:] else part * 2))}"/>'
        for part in _unbroken(_thinned(points))
    )
    opening = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{words}">'
    return Markup(f"{opening}{rules}{marks}{lines}</svg>")


def _thinned(points: Sequence[Point]) -> Iterator[Point]:
    """Of each range of steps its ends, its lowest, its highest and one that was not finite: no spike is lost."""
    size = max(1, len(points) // RANGES)
    for start in range(0, len(points), size):
        part = points[start : start + size]
        finite = [(value, place) for place, (_, value) in enumerate(part) if value is not None]
        lost = [place for place, (_, value) in enumerate(part) if value is None]
        ends = {0, len(part) - 1} if start in (0, (len(points) - 1) // size * size) else set[int]()
        found = {place for _, place in (min(finite), max(finite))} if finite else set[int]()
        yield from (part[place] for place in sorted({*ends, *found, *lost[:1]}))


def _unbroken(points: Iterator[Point]) -> list[list[tuple[int, float]]]:
    parts: list[list[tuple[int, float]]] = [[]]
    for step, value in points:
        if value is None:
            parts.append([])
        else:
            parts[-1].append((step, value))
    return [part for part in parts if part]


def flames(spans: Sequence[Span]) -> Flames:
    """The last step of a recording: a bar a span, below the span that it is inside of."""
    steps = [each for each in spans if each.granularity == "step"]
    whole = steps[-1] if steps else max(spans, key=lambda each: each.ended - each.began)
    depth, inside = {whole.number: 0}, [whole]
    for span in sorted(spans, key=lambda each: each.number):
        if span.parent in depth and span.number not in depth:
            depth[span.number] = depth[span.parent] + 1
            inside.append(span)
    shown = sorted(inside, key=lambda each: each.began - each.ended)[:FLAMES]
    bars = "".join(_bar(each, whole, depth[each.number]) for each in shown)
    height = (max(depth[each.number] for each in shown) + 1) * TALL
    words = f"{whole.name}: {(whole.ended - whole.began) / 1e6:,.2f} ms"
    opening = f'<svg viewBox="0 0 {WIDE} {height}" role="img" aria-label="{html.escape(words)}">'
    return Flames(words=words, drawing=Markup(f"{opening}{bars}</svg>"), hidden=len(inside) - len(shown))


def _bar(span: Span, whole: Span, depth: int) -> str:
    length = max(1, whole.ended - whole.began)
    x, width = (span.began - whole.began) / length * WIDE, max(0.6, (span.ended - span.began) / length * WIDE)
    words = html.escape(f"{span.name}: {(span.ended - span.began) / 1e6:.2f} ms")
    letters = int(width / LETTER) - 1
    # Cut as text: an escaped name could be cut within an entity.
    name = html.escape(span.name if len(span.name) <= letters else f"{span.name[: letters - 1]}…")
    label = f'<text x="{x + 4:.1f}" y="{depth * TALL + 15}">{name}</text>' if width > 40 else ""
    bar = f'<rect x="{x:.1f}" y="{depth * TALL}" width="{width:.1f}" height="{TALL - 2}"><title>{words}</title></rect>'
    return f'<g class="{html.escape(span.granularity)}">{bar}{label}</g>'
