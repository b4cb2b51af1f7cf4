"""A picture of orders: for each function a strip of batch sizes, coloured by order, and each order as a tree."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any

from samebits.numerics.order import Leaf, Nearest, Node, Order, height, nodes, size

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "orders_by_rows.svg"
# One colour an order; equal orders of two functions have the same.
COLOURS = ("#2563eb", "#d97706", "#db2777", "#059669", "#7c3aed", "#64748b")
# Pixels.
WIDTH, MARGIN, CELL, STRIP = 848, 24, 12.5, 22
TREE_WIDTH, TREE_TALL, BLOCK_HEADING, CAPTION = 240, 120, 34, 40
STYLE = """<style>
text { font-family: system-ui, sans-serif; fill: #1f2937 } .faint { fill: #6b7280 } .paper { fill: #ffffff }
@media (prefers-color-scheme: dark) { text { fill: #e5e7eb } .faint { fill: #9ca3af } .paper { fill: #0d1117 } }
</style>"""


def read_order(spelled: str) -> Order:
    """An order of plain additions, as `numerics.order.text` spells it."""
    stack: list[list[Order]] = [[]]
    for word in re.findall(r"[()]|\d+", spelled):
        if word == "(":
            stack.append([])
        elif word == ")":
            kids = stack.pop()
            stack[-1].append(Node(Nearest(), tuple(kids)))
        else:
            stack[-1].append(Leaf(int(word)))
    (order,) = stack[0]
    return order


def picture(record: dict[str, Any]) -> str:
    """The record as an SVG, for light pages and dark ones."""
    digests = list(dict.fromkeys(order["digest"] for each in record["functions"] for order in each["orders"]))
    colours = dict(zip(digests, COLOURS, strict=False))
    assert len(colours) == len(digests), f"{len(digests)} orders, {len(COLOURS)} colours"
    y, drawn = 64.0, []
    for each in record["functions"]:
        drawn.append(_block(each, y, colours))
        y += BLOCK_HEADING + STRIP + TREE_TALL + CAPTION + 30
    title = f"In which order a linear layer adds {record['terms']} products"
    words = f"{record['dtype']}, by the number of rows in the batch; {record['machine']}, torch {record['torch']}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:.0f}" width="{WIDTH}" role="img">',
            f"<title>{escape(title)}</title>",
            STYLE,
            f'<rect class="paper" width="{WIDTH}" height="{y:.0f}" rx="8"/>',
            _text(MARGIN, 30, 18, title, weight=600),
            _text(MARGIN, 50, 12.5, words, kind="faint"),
            *drawn,
            "</svg>",
            "",
        ]
    )


def _block(function: dict[str, Any], top: float, colours: dict[str, str]) -> str:
    orders = function["orders"]
    count = "one order, whatever the batch" if len(orders) == 1 else f"{len(orders)} orders"
    parts = [_text(MARGIN, top + 20, 14, f"{function['function']}: {count}", weight=600)]
    y = top + BLOCK_HEADING
    for order in orders:
        for rows in order["rows"]:
            box = f'x="{MARGIN + (rows - 1) * CELL:.1f}" y="{y:.1f}" width="{CELL - 1.5:.1f}" height="{STRIP}"'
            parts.append(f'<rect {box} rx="2" fill="{colours[order["digest"]]}"/>')
    last = max(rows for order in orders for rows in order["rows"])
    for rows in [2**power for power in range(last.bit_length())]:
        middle = MARGIN + (rows - 1) * CELL + CELL / 2
        parts.append(_text(middle, y + STRIP + 14, 10, str(rows), kind="faint", anchor="middle"))
    parts.append(_text(WIDTH - MARGIN, top + 20, 10, "rows in the batch", kind="faint", anchor="end"))
    for number, order in enumerate(orders):
        x = MARGIN + number * (TREE_WIDTH + MARGIN)
        parts.append(_tree(read_order(order["order"]), x, y + STRIP + 26, colours[order["digest"]]))
        parts.append(_text(x, y + STRIP + 26 + TREE_TALL + 18, 12, _rows(order["rows"]), kind="faint"))
    return "\n".join(parts)


def _rows(rows: list[int]) -> str:
    if len(rows) == 1:
        return "1 row" if rows == [1] else f"{rows[0]} rows"
    assert rows == list(range(rows[0], rows[-1] + 1)), f"no range: {rows}"
    return f"{rows[0]} to {rows[-1]} rows"


def _tree(order: Order, left: float, top: float, colour: str) -> str:
    """Terms at the bottom, in the order in which they are taken up; each sum above what it adds."""
    step, rise = TREE_WIDTH / (size(order) - 1), TREE_TALL / height(order)
    places: list[tuple[float, int]] = []
    lines, drawn = [], 0
    for part in nodes(order):
        if isinstance(part, Leaf):
            places.append((left + drawn * step, 0))
            drawn += 1
            continue
        kids = [places.pop() for _ in part.kids]
        here = sum(x for x, _ in kids) / len(kids), 1 + max(level for _, level in kids)
        y = top + TREE_TALL - rise * here[1]
        lines += [f"M{x:.1f} {top + TREE_TALL - rise * level:.1f}V{y:.1f}H{here[0]:.1f}" for x, level in kids]
        places.append(here)
    return f'<path d="{"".join(lines)}" fill="none" stroke="{colour}" stroke-width="1.1"/>'


def _text(
    x: float, y: float, points: float, words: str, *, kind: str = "", weight: int = 400, anchor: str = "start"
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{points}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text {place} class="{kind}">{escape(words)}</text>'
