"""Ratios by size as one SVG: a panel for each operator, a colour for each model, a line where both are as fast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Final

from samebits.bench.measuring import Line

WIDTH, HEIGHT, LEFT, TOP, ACROSS = 300, 190, 46, 30, 3
LOWEST, HIGHEST = 0.25, 4.0
FONT: Final = 'font-family="sans-serif" font-size="11"'
COLOURS: Final = ("#3366cc", "#dc7633", "#2e8b57", "#8e44ad", "#b03a2e", "#16808c")


def svg(lines: Sequence[Line], title: str) -> str:
    """The picture as text. What has no ratio is not in it."""
    timed = [each for each in lines if each.ratio]
    operators, models = (list(dict.fromkeys(getattr(each, name) for each in timed)) for name in ("operator", "model"))
    colours = {model: COLOURS[number % len(COLOURS)] for number, model in enumerate(models)}
    down = max(1, -(-len(operators) // ACROSS))
    width, height = ACROSS * WIDTH, down * HEIGHT + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {FONT}>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="20" font-size="14">{escape(title)}</text>',
    ]
    for number, model in enumerate(models):
        x = 12 + number * 150
        parts.append(f'<circle cx="{x + 4}" cy="36" r="4" fill="{colours[model]}"/>')
        parts.append(f'<text x="{x + 14}" y="40">{escape(model)}</text>')
    for number, operator in enumerate(operators):
        corner = (number % ACROSS * WIDTH, number // ACROSS * HEIGHT + 50)
        parts += _panel(operator, [each for each in timed if each.operator == operator], colours, corner)
    return "\n".join([*parts, "</svg>\n"])


def _panel(operator: str, lines: Sequence[Line], colours: dict[str, str], corner: tuple[int, int]) -> list[str]:
    left, top = corner[0] + LEFT, corner[1] + TOP
    wide, high = WIDTH - LEFT - 14, HEIGHT - TOP - 34
    sizes = sorted({each.size for each in lines})
    low, span = math.log2(sizes[0]), max(1.0, math.log2(sizes[-1]) - math.log2(sizes[0]))

    def y_of(ratio: float) -> float:
        part = math.log2(min(max(ratio, LOWEST), HIGHEST) / LOWEST) / math.log2(HIGHEST / LOWEST)
        return top + high * (1 - part)

    parts = [f'<text x="{left}" y="{top - 8}" font-size="12">{escape(operator)}</text>']
    for ratio in (0.25, 0.5, 1.0, 2.0, 4.0):
        stroke = "#222222" if ratio == 1 else "#dddddd"
        y = y_of(ratio)
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{left + wide}" y2="{y:.1f}" stroke="{stroke}"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{ratio:g}</text>')
    for size in dict.fromkeys((sizes[0], sizes[len(sizes) // 2], sizes[-1])):
        x = left + wide * (math.log2(size) - low) / span
        parts.append(f'<text x="{x:.1f}" y="{top + high + 16}" text-anchor="middle">{size:,}</text>')
    for each in lines:
        x = left + wide * (math.log2(each.size) - low) / span
        told = escape(f"{each.model} {each.sizes}: {each.ratio:.2f} of {each.best}")
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y_of(each.ratio or 1.0):.1f}" r="3" fill="{colours[each.model]}"'
            f' fill-opacity="0.7"><title>{told}</title></circle>'
        )
    return parts
