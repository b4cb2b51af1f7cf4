"""Timelines of a step as one self-contained SVG picture: a panel for each variant, one scale of time for all.

In a panel the first and the last rank of a copy have three rows each: kernels, messages that kernels wait for, and
collectives beside them. Above each panel stands what it comes to, and a bar that says where the time goes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Final

from samebits.sim.layouts import Training
from samebits.sim.predict import Prediction
from samebits.sim.step_clock import COMPUTE, MESSAGES, NETWORK, Event
from samebits.sim.timeline import OTHER, category

WIDTH: Final = 1240
LEFT, RIGHT, TOP = 168, 36, 112
ROW, GAP, BETWEEN, HEAD = 20, 5, 16, 58
# Okabe and Ito's colours, which the colour-blind can tell apart.
COLOURS: Final = {
    "forward": "#56B4E9", "backward": "#0072B2", "head": "#009E73", "update": "#F0C419", "sums": "#D55E00",
    "gradients": "#CC79A7", "weights": "#8C6BB1", OTHER: "#C9CED6",
}  # fmt: skip
MEANINGS: Final = {
    "forward": "forward", "backward": "backward", "head": "head and loss", "update": "update, trees of sums",
    "sums": "sums over tensor ranks", "gradients": "gradients", "weights": "weights", OTHER: "micro-batches alike",
}  # fmt: skip
STREAMS: Final = {COMPUTE: "kernels", MESSAGES: "waited for", NETWORK: "beside kernels"}
FONT: Final = "font-family='Inter, Helvetica, Arial, sans-serif'"
INK, PALE, LINE = "#1F2933", "#6B7785", "#E4E8ED"
# Narrower than this, bars of one kind that touch are drawn as one.
HAIR: Final = 0.6


def picture_of(predictions: Sequence[Prediction], training: Training) -> str:
    """The whole picture."""
    longest = max(each.seconds for each in predictions)
    scale = (WIDTH - LEFT - RIGHT) / longest
    body: list[str] = []
    y: float = TOP
    for each in predictions:
        panel, height = _panel(each, y, scale, predictions[0].seconds, _round_step(longest / 8))
        body += panel
        y += height
    used = {category(event.name) for each in predictions for event in each.events}
    frame = [*_labels(longest, scale, y), *_title(training, predictions), *_legend(used)]
    height = y + 46
    return "\n".join([
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}'"
        f" {FONT}>", f"<rect width='{WIDTH}' height='{height}' fill='white'/>", *frame, *body, "</svg>",
    ]) + "\n"  # fmt: skip


def _text(x: float, y: float, words: str, size: int = 13, colour: str = INK, *, weight: str = "400",
          anchor: str = "start") -> str:  # fmt: skip
    return (f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' fill='{colour}' font-weight='{weight}'"
            f" text-anchor='{anchor}'>{escape(words)}</text>")  # fmt: skip


def _title(training: Training, predictions: Sequence[Prediction]) -> list[str]:
    gpus = " and ".join(sorted({f"{each.gpus:,}" for each in predictions}))
    sizes = (f"{training.decoder.weights / 1e9:,.1f} billion weights, {training.sequences:,} sequences of"
             f" {training.length:,} tokens, {training.dtype}")  # fmt: skip
    return [
        _text(24, 36, f"One training step on {gpus} GPUs, predicted", 20, weight="600"),
        _text(24, 58, f"{sizes}. One copy is drawn, all are alike. A model's word, no measurement.", 13, PALE),
    ]  # fmt: skip


def _legend(used: set[str]) -> list[str]:
    found, x = [], 24.0
    for kind, colour in COLOURS.items():
        if kind in used:
            found.append(f"<rect x='{x:.1f}' y='74' width='12' height='12' rx='2' fill='{colour}'/>")
            found.append(_text(x + 18, 84.5, MEANINGS[kind], 12, PALE))
            x += 18 + 6.4 * len(MEANINGS[kind]) + 22
    return found


def _panel(each: Prediction, y: float, scale: float, native: float, tick: float) -> tuple[list[str], float]:
    """One variant from `y` on, and how high it is."""
    kept = " and ".join(each.promises)
    name = f"Promises kept: {kept}" if kept else "No promise kept: NCCL's own orders, modelled"
    ratio = f" ({each.seconds / native:.2f} times as long)" if kept else ""
    said = [_copies(each), f"{_time(each.seconds)} a step{ratio}", f"{each.tokens_per_s / 1e6:,.1f} M tokens/s",
            f"MFU {each.utilisation:.0%}", f"kernels wait {each.waiting:.0%} of the time",
            f"{each.memory / 1e9:,.0f} GB a GPU"]  # fmt: skip
    found = [_text(24, y + 22, name, 15, weight="600"), _text(24, y + 42, "  ·  ".join(said), 13, PALE)]
    places, at = _shown(each), y + HEAD
    height = len(places) * (len(STREAMS) * (ROW + GAP) + BETWEEN - GAP) - BETWEEN
    found += _grid(each.seconds, scale, tick, at, height)
    for place in places:
        if len(places) > 1:
            found.append(_text(24, at + ROW - 5, f"rank {place}", 12, INK, weight="600"))
        for stream, label in STREAMS.items():
            events = [event for event in each.events if event.place == place and event.stream == stream]
            found.append(
                f"<rect x='{LEFT}' y='{at}' width='{each.seconds * scale:.1f}' height='{ROW}' fill='#F3F5F8'/>"
            )
            found.append(_text(LEFT - 10, at + ROW - 6, label, 12, PALE, anchor="end"))
            found += [_bar(start, stop, kind, at, scale, tip) for start, stop, kind, tip in _merged(events, scale)]
            at += ROW + GAP
        at += BETWEEN - GAP
    end = LEFT + each.seconds * scale
    found.append(f"<line x1='{end:.1f}' x2='{end:.1f}' y1='{y + HEAD - 4}' y2='{at - BETWEEN + 4:.1f}' stroke='{INK}'"
                 f" stroke-width='1.5'/>")  # fmt: skip
    return found, at - y + 8


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


def _bar(start: float, stop: float, kind: str, y: float, scale: float, tip: str) -> str:
    x, width = LEFT + start * scale, max((stop - start) * scale, HAIR)
    return (f"<rect x='{x:.2f}' y='{y}' width='{width:.2f}' height='{ROW}' fill='{COLOURS[kind]}'>"
            f"<title>{escape(tip)}: {_time(stop - start)}</title></rect>")  # fmt: skip


def _copies(each: Prediction) -> str:
    copies, ranks = each.layout.data, each.layout.tensor
    return f"{copies:,} copies of {ranks} GPU{'s' if ranks > 1 else ''} each"


def _shown(each: Prediction) -> list[int]:
    """The first rank of a copy, and the last where it does something else."""
    last = each.layout.tensor - 1
    done = [[(event.stream, event.name, event.start) for event in each.events if event.place == place]
            for place in (0, last)]  # fmt: skip
    return [0] if done[0] == done[1] else [0, last]


def _grid(seconds: float, scale: float, tick: float, y: float, height: float) -> list[str]:
    """Lines at round times, within a panel."""
    ticks = [LEFT + number * tick * scale for number in range(math.floor(seconds / tick) + 1)]
    return [
        f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{y - 4:.1f}' y2='{y + height + 4:.1f}' stroke='{LINE}'/>" for x in ticks
    ]


def _labels(longest: float, scale: float, bottom: float) -> list[str]:
    """Round times, below all panels."""
    tick = _round_step(longest / 8)
    return [_text(LEFT + number * tick * scale, bottom + 18, _time(number * tick) if number else "0", 12, PALE,
                  anchor="middle") for number in range(math.floor(longest / tick) + 1)]  # fmt: skip


def _round_step(about: float) -> float:
    """1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(about))
    return next(power * times for times in (1, 2, 5, 10) if power * times >= about)


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:,.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
