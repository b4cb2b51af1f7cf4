"""Timelines of a step as one self-contained SVG picture: a panel for each variant, one scale of time for all.

In a panel the first and the last rank of a copy have three rows each: kernels, messages that kernels wait for, and
collectives beside them. Above each panel stands what it comes to. Micro-batches that are alike break its axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from samebits.sim.layouts import Training
from samebits.sim.predict import Prediction
from samebits.sim.step_clock import COMPUTE, MESSAGES, NETWORK, Event
from samebits.sim.timeline import OTHER, category

WIDTH: Final = 1240
LEFT, RIGHT, TOP = 168, 36, 112
ROW, GAP, BETWEEN, HEAD, BREAK = 20, 5, 16, 58, 160
# Okabe and Ito's colours, which the colour-blind can tell apart.
COLOURS: Final = {
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "head": "#009E73",
    "update": "#F0C419",
    "sums": "#D55E00",
    "gradients": "#CC79A7",
    "weights": "#8C6BB1",
    OTHER: "#C9CED6",
}
MEANINGS: Final = {
    "forward": "forward",
    "backward": "backward",
    "head": "head and loss",
    "update": "update, trees of sums",
    "sums": "sums over tensor ranks",
    "gradients": "gradients",
    "weights": "weights",
    OTHER: "micro-batches alike",
}
STREAMS: Final = {COMPUTE: "kernels", MESSAGES: "waited for", NETWORK: "beside kernels"}
FONT: Final = "font-family='Inter, Helvetica, Arial, sans-serif'"
INK, PALE, LINE = "#1F2933", "#6B7785", "#E4E8ED"
# Narrower than this, bars of one kind that touch are drawn as one.
HAIR: Final = 0.6


@dataclass(frozen=True, slots=True)
class _Axis:
    """Where a time is drawn. Micro-batches that are alike take a fixed width: the axis is broken there."""

    scale: float
    stop: float
    alike: tuple[float, float] | None

    @classmethod
    def of(cls, each: Prediction, scale: float) -> _Axis:
        return cls(scale, each.seconds, _alike(each))

    def at(self, time: float) -> float:
        if self.alike is None or time <= self.alike[0]:
            return LEFT + time * self.scale
        begin, end = self.alike
        if time < end:
            return LEFT + begin * self.scale + BREAK * (time - begin) / (end - begin)
        return LEFT + BREAK + (time - (end - begin)) * self.scale

    def ticks(self, step: float) -> list[float]:
        """Round times, none within the break."""
        found = [number * step for number in range(math.floor(self.stop / step) + 1)]
        if self.alike is None:
            return found
        begin, end = self.alike
        return [time for time in found if time <= begin or self.at(time) > self.at(end) + 24]


def _alike(each: Prediction) -> tuple[float, float] | None:
    """From when to when micro-batches pass that are not drawn one by one."""
    return next(((event.start, event.stop) for event in each.events if category(event.name) == OTHER), None)


def picture_of(predictions: Sequence[Prediction], training: Training) -> str:
    """The whole picture."""
    longest = max(_drawn(each) for each in predictions)
    broken = any(_alike(each) for each in predictions)
    scale = (WIDTH - LEFT - RIGHT - (BREAK if broken else 0)) / longest
    body: list[str] = []
    y: float = TOP
    for each in predictions:
        panel, height = _panel(each, y, _Axis.of(each, scale), predictions[0].seconds, _round_step(longest / 8))
        body += panel
        y += height
    used = {category(event.name) for each in predictions for event in each.events}
    frame = [*_title(training, predictions), *_legend(used)]
    height = y + 12
    return (
        "\n".join(
            [
                f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}'"
                f" width='{WIDTH}' height='{height}'"
                f" {FONT}>",
                f"<rect width='{WIDTH}' height='{height}' fill='white'/>",
                *frame,
                *body,
                "</svg>",
            ]
        )
        + "\n"
    )


def _drawn(each: Prediction) -> float:
    """Seconds that are drawn to scale."""
    begin, end = _alike(each) or (0.0, 0.0)
    return each.seconds - (end - begin)


def _text(
    x: float, y: float, words: str, size: int = 13, colour: str = INK, *, weight: str = "400", anchor: str = "start"
) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' fill='{colour}' font-weight='{weight}'"
        f" text-anchor='{anchor}'>{escape(words)}</text>"
    )


def _title(training: Training, predictions: Sequence[Prediction]) -> list[str]:
    gpus = " and ".join(sorted({f"{each.gpus:,}" for each in predictions}))
    sizes = (
        f"{training.decoder.weights / 1e9:,.1f} billion weights, {training.sequences:,} sequences of"
        f" {training.length:,} tokens, {training.dtype}"
    )
    return [
        _text(24, 36, f"One training step on {gpus} GPUs, predicted", 20, weight="600"),
        _text(24, 58, f"{sizes}. One copy is drawn, all are alike. A model's word, no measurement.", 13, PALE),
    ]


def _legend(used: set[str]) -> list[str]:
    found, x = [], 24.0
    for kind, colour in COLOURS.items():
        if kind in used:
            found.append(f"<rect x='{x:.1f}' y='74' width='12' height='12' rx='2' fill='{colour}'/>")
            found.append(_text(x + 18, 84.5, MEANINGS[kind], 12, PALE))
            x += 18 + 6.4 * len(MEANINGS[kind]) + 22
    return found


def _panel(each: Prediction, y: float, axis: _Axis, native: float, tick: float) -> tuple[list[str], float]:
    """One variant from `y` on, and how high it is."""
    kept = " and ".join(each.promises)
    name = f"Promises kept: {kept}" if kept else "No promise kept: NCCL's own orders, modelled"
    ratio = f" ({each.seconds / native:.2f} times as long)" if kept else ""
    said = [
        _copies(each),
        f"{_time(each.seconds)} a step{ratio}",
        f"{each.tokens_per_s / 1e6:,.3g} M tokens/s",
        f"MFU {each.utilisation:.0%}",
        f"kernels wait {each.waiting:.0%} of the time",
        f"{each.memory / 1e9:,.0f} GB a GPU",
    ]
    found = [_text(24, y + 22, name, 15, weight="600"), _text(24, y + 42, "  ·  ".join(said), 13, PALE)]
    places, top = _shown(each), y + HEAD
    at, bottom = top, top + len(places) * (len(STREAMS) * (ROW + GAP) + BETWEEN - GAP) - BETWEEN
    rows, ticks = [], axis.ticks(tick)
    for place in places:
        if len(places) > 1:
            rows.append(_text(24, at + ROW - 5, f"rank {place}", 12, INK, weight="600"))
        for stream, label in STREAMS.items():
            events = [event for event in each.events if event.place == place and event.stream == stream]
            wide = axis.at(each.seconds) - LEFT
            rows.append(f"<rect x='{LEFT}' y='{at}' width='{wide:.1f}' height='{ROW}' fill='#F3F5F8'/>")
            rows.append(_text(LEFT - 10, at + ROW - 6, label, 12, PALE, anchor="end"))
            rows += [_bar(bar, at, axis) for bar in _merged(events, axis.scale)]
            at += ROW + GAP
        at += BETWEEN - GAP
    for time in ticks:
        found.append(_line(axis.at(time), top - 4, bottom + 4, LINE))
        found.append(_text(axis.at(time), bottom + 20, _time(time) if time else "0", 11, PALE, anchor="middle"))
    rows.append(_line(axis.at(each.seconds), top - 4, bottom + 4, INK))
    return found + rows, bottom - y + 42


def _line(x: float, top: float, bottom: float, colour: str) -> str:
    return f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{top:.1f}' y2='{bottom:.1f}' stroke='{colour}'/>"


def _merged(events: Sequence[Event], scale: float) -> list[tuple[float, float, str, str]]:
    """Bars to draw: those too narrow to be seen join their neighbours of the same kind."""
    found: list[tuple[float, float, str, str]] = []
    for event in sorted(events, key=lambda each: each.start):
        kind = category(event.name)
        if found and found[-1][2] == kind and (event.start - found[-1][1]) * scale < HAIR:
            start, _, _, tip = found[-1]
            found[-1] = (
                start,
                event.stop,
                kind,
                tip if tip == event.name else f"{tip.split(' to ')[0]} to {event.name}",
            )
        else:
            found.append((event.start, event.stop, kind, event.name))
    return found


def _bar(bar: tuple[float, float, str, str], y: float, axis: _Axis) -> str:
    start, stop, kind, tip = bar
    x = axis.at(start)
    width = max(axis.at(stop) - x, HAIR)
    drawn = (
        f"<rect x='{x:.2f}' y='{y}' width='{width:.2f}' height='{ROW}' fill='{COLOURS[kind]}'>"
        f"<title>{escape(tip)}: {_time(stop - start)}</title></rect>"
    )
    if kind == OTHER:
        words = f"{tip.split()[0]} x alike, {_time(stop - start)}"
        return drawn + _text(x + width / 2, y + ROW - 6, words, 11, INK, anchor="middle")
    return drawn


def _copies(each: Prediction) -> str:
    copies, ranks = each.layout.data, each.layout.tensor
    return f"{copies:,} copies of {ranks} GPU{'s' if ranks > 1 else ''} each"


def _shown(each: Prediction) -> list[int]:
    """The first rank of a copy, and the last where it does something else."""
    last = each.layout.tensor - 1
    done = [
        [(event.stream, event.name, event.start) for event in each.events if event.place == place]
        for place in (0, last)
    ]
    return [0] if done[0] == done[1] else [0, last]


def _round_step(about: float) -> float:
    """1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(about))
    return next(power * times for times in (1, 2, 5, 10) if power * times >= about)


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:,.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
