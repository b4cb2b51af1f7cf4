"""The part of the demo's page about whole models: token chips, hash blocks, the loss curve and strips of ulps.

Knows the measurements it is given and takes none. Pictures carry numbers only, so that nothing in them needs escaping;
their colours are the page's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from markupsafe import Markup

from samebits.numerics.bits import hexadecimal, numpy_bits

if TYPE_CHECKING:
    from samebits.parity.demo_results import Answer, Cuts, Models, Policy, Token, TrainingRun

WIDTH: Final = 640
# Room for the numbers left of a picture and under it.
LEFT, BOTTOM, EDGE = 50, 36, 10
HEIGHT: Final = 260
# Signs that would not be seen in a chip.
SHOWN: Final = {"\n": "↵", "\t": "⇥", " ": "␣"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Chip:
    """One token of an answer, drawn."""

    text: str
    crowded_text: str
    same: bool
    ulps: int
    alone: str
    crowded: str
    """The logprobs as eight hexadecimal digits."""
    hover: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One side's answer."""

    name: str
    differing: int
    chips: tuple[Chip, ...]
    parted: bool
    alone: str
    crowded: str
    place: int
    """The token that is shown bit by bit."""
    patterns: tuple[str, str]
    values: tuple[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A checkpoint's hash, to be told from others at a glance."""

    words: str
    name: str
    digits: str
    drawing: Markup


def sides(models: Models) -> tuple[Side, ...]:
    """Stock torch and samebits; none where no model answered."""
    crowd = models.crowd
    if crowd is None:
        return ()
    first = crowd.stock.first or 0
    # Of samebits the token that stock torch changed first, unless there is a difference of its own to show.
    same = min(first, len(crowd.ours.tokens) - 1)
    ours = same if crowd.ours.first is None else crowd.ours.first
    return _side("stock torch", crowd.stock, first), _side("samebits", crowd.ours, ours)


def _side(name: str, answer: Answer, place: int) -> Side:
    token = answer.tokens[place]
    numbers = (token.alone, token.crowded)
    return Side(
        name=name,
        differing=answer.differing,
        chips=tuple(map(_chip, answer.tokens)),
        place=place,
        parted=answer.alone != answer.crowded,
        alone=answer.alone,
        crowded=answer.crowded,
        patterns=(f"{_bits(numbers[0]):032b}", f"{_bits(numbers[1]):032b}"),
        values=(hexadecimal(numbers[0]), hexadecimal(numbers[1])),
    )


def _chip(token: Token) -> Chip:
    alone, crowded = (f"{_bits(each):08x}" for each in (token.alone, token.crowded))
    words = "same bits" if token.same else f"{token.ulps} ulp apart"
    hover = f"{token.text!r}\nalone {alone} ({token.alone:.9g})\nin the crowd {crowded} ({token.crowded:.9g})\n{words}"
    return Chip(
        text=_visible(token.text),
        crowded_text=_visible(token.crowded_text),
        same=token.same,
        ulps=token.ulps,
        alone=alone,
        crowded=crowded,
        hover=hover,
    )


def _visible(text: str) -> str:
    """Without the space before a word, which a chip's own component stands for; what would show nothing is a sign."""
    text = "".join(SHOWN[sign] if sign in "\n\t" else sign for sign in text)
    return text.strip(" ") or text.replace(" ", SHOWN[" "]) or "∅"


def _bits(logprob: float) -> int:
    return int(numpy_bits(np.float32(logprob)))


def blocks(cuts: Cuts) -> list[Block]:
    return [_block(each) for each in cuts.runs]


def _block(run: TrainingRun) -> Block:
    name, digits = run.digest.split(":")
    passes = f"{run.accumulation} pass{'es' if run.accumulation > 1 else ''}"
    words = f"{passes} of {run.micro_batch}, {run.collation}"
    return Block(words=words, name=name, digits=digits, drawing=_hash(bytes.fromhex(digits)))


def _hash(data: bytes) -> Markup:
    """A cell a byte: its hue from the high bits, its lightness from the low ones."""
    columns, size = len(data) // 2, 20
    cells = [
        f'<rect x="{place % columns * size}" y="{place // columns * size}" width="{size}" height="{size}"'
        f' fill="hsl({byte * 360 // 256} 45% {38 + byte % 8 * 5}%)"/>'
        for place, byte in enumerate(data)
    ]
    box = f'viewBox="0 0 {columns * size} {2 * size}"'
    return Markup(f'<svg class="hash" {box} role="img" aria-label="{data.hex()}">{"".join(cells)}</svg>')


def loss_curve(cuts: Cuts) -> Markup:
    """Every run's losses in one frame, each line thinner than the one under it."""
    losses = [loss for each in cuts.runs for loss in each.losses]
    low, high = math.floor(min(losses) * 2) / 2, math.ceil(max(losses) * 2) / 2
    steps, floor = len(cuts.runs[0].losses), HEIGHT - BOTTOM

    def across(step: int) -> float:
        return LEFT + (WIDTH - LEFT - EDGE) * (step - 1) / max(steps - 1, 1)

    def up(loss: float) -> float:
        return floor - (floor - EDGE) * (loss - low) / ((high - low) or 1.0)

    half = (high - low) / 2
    drawn = [_line(up(value), f"{value:.2g}") for value in dict.fromkeys((low, low + half, high))]
    for place, each in enumerate(cuts.runs):
        points = " ".join(f"{across(step):.1f},{up(loss):.1f}" for step, loss in enumerate(each.losses, 1))
        drawn.append(f'<polyline class="run run{place}" points="{points}"/>')
    drawn += _feet([(across(step), str(step)) for step in dict.fromkeys((1, (steps + 1) // 2, steps))], floor, "update")
    return _picture(HEIGHT, drawn, "loss of every update, all runs over one another")


def strip(stock: Sequence[int], ours: Sequence[int], unit: str) -> Markup:
    """Ulps of each place in order: stock torch above, samebits below, on one logarithmic scale that begins with 0."""
    levels = [math.ceil(_level(max(values))) for values in (stock, ours)]
    # Each strip has a line for 0 and component around it; the rest of the height is shared by all powers of two.
    component = 34
    rise = (HEIGHT - BOTTOM - 2 * component) / max(sum(levels), 1)
    drawn, top = list[str](), 0.0
    for name, values, count in zip(("stock", "ours"), (stock, ours), levels, strict=True):
        zero = top + component / 2 + count * rise
        ticks = (0, *(2**power for power in range(0, count, 1 + count // 5)))
        drawn += [_line(zero - rise * _level(tick), str(tick)) for tick in ticks]
        step = (WIDTH - LEFT - 3 * EDGE) / max(len(values) - 1, 1)
        points = [(LEFT + EDGE + place * step, zero - rise * _level(value)) for place, value in enumerate(values)]
        drawn += [f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points]
        top = zero + component / 2
    drawn += _feet([(LEFT + EDGE, "1"), (WIDTH - 2 * EDGE, str(len(stock)))], HEIGHT - BOTTOM, unit)
    return _picture(HEIGHT, drawn, f"ulps of difference by {unit}")


def _level(ulps: int) -> float:
    return 1 + math.log2(ulps) if ulps else 0.0


def _line(y: float, words: str) -> str:
    rule = f'<line class="rule" x1="{LEFT}" x2="{WIDTH - EDGE}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return f'{rule}<text x="{LEFT - 8}" y="{y + 6:.1f}" text-anchor="end">{words}</text>'


def _feet(ticks: Sequence[tuple[float, str]], floor: float, unit: str) -> list[str]:
    """Numbers under a picture; the first carries the unit."""
    words = [f"{unit} {ticks[0][1]}", *(each for _, each in ticks[1:])]
    anchors = ["start", *["middle"] * (len(ticks) - 2), "end"][: len(ticks)]
    return [
        f'<text x="{x:.1f}" y="{floor + 24:.1f}" text-anchor="{anchor}">{each}</text>'
        for (x, _), each, anchor in zip(ticks, words, anchors, strict=True)
    ]


def _picture(height: float, drawn: Sequence[str], words: str) -> Markup:
    opening = f'<svg class="chart" viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{words}">'
    return Markup(opening + "".join(drawn) + "</svg>")


def policy_strip(policy: Policy) -> Markup:
    return strip(policy.stock.ulps, policy.ours.ulps, "token")


def loss_strip(models: Models) -> Markup:
    return strip(models.stock_cuts.loss_ulps, models.our_cuts.loss_ulps, "update")
