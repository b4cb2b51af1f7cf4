"""The demo as one HTML page that needs nothing else: text, tables, bit patterns and pictures of orders.

Knows the measurements it is given and takes none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Final

import jinja2
from markupsafe import Markup

from samebits.cli.demonstration import (
    OUR_LINEAR,
    REVEALED_ROWS,
    STOCK_LINEAR,
    TERMS,
    Demonstration,
    Example,
    Orders,
    Sweep,
)
from samebits.numerics.order import Order, digest, height
from samebits.numerics.picture import HEADING, describe, svg

TEMPLATES = Path(__file__).parent / "templates"
# Where a pattern is split for the eye: after the sign and after the exponent.
FIELDS: Final = {16: (1, 9), 32: (1, 9)}


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring bits of one field that all differ, or all agree."""

    bits: str
    differs: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """One order, drawn."""

    subject: str
    rows: str
    words: str
    short: str
    height: int
    verdict: str
    drawing: Markup


def render(shown: Demonstration) -> str:
    """The page."""
    loader = jinja2.FileSystemLoader(TEMPLATES)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    stock, ours = (_pictures(each) for each in shown.orders)
    return environment.get_template("demo.html").render(
        shown=shown, example=shown.example, swept=_swept(shown), counterpart=shown.counterpart, stock=stock, ours=ours,
        patterns=[_patterns(each) for each in (shown.example, shown.counterpart) if each is not None],
        commands=_commands(shown), terms=TERMS,
    )  # fmt: skip


def _swept(shown: Demonstration) -> Sweep | None:
    """The sweep that the example comes from."""
    if shown.example is None:
        return None
    wanted = (shown.example.subject, shown.example.case.format)
    return next(sweep for sweep in shown.sweeps if (sweep.subject, sweep.format) == wanted)


def _patterns(example: Example) -> dict[str, list[list[Run]]]:
    """Both patterns cut into sign, exponent and fraction, and there into runs."""
    return {
        "alone": _fields(example.alone.pattern, example.batched.pattern),
        "batched": _fields(example.batched.pattern, example.alone.pattern),
    }


def _fields(pattern: str, other: str) -> list[list[Run]]:
    cuts = (0, *FIELDS[len(pattern)], len(pattern))
    marked = list(zip(pattern, (a != b for a, b in zip(pattern, other, strict=True)), strict=True))
    return [_runs(marked[start:stop]) for start, stop in pairwise(cuts)]


def _runs(marked: list[tuple[str, bool]]) -> list[Run]:
    return [Run("".join(bit for bit, _ in run), differs) for differs, run in groupby(marked, key=lambda each: each[1])]


def _pictures(orders: Orders) -> list[Picture]:
    return [
        Picture(
            subject=orders.subject, rows=_rows(group.labels), words=_words(group.order), short=digest(group.order)[:12],
            height=height(group.order), verdict=group.verdict,
            drawing=_headless(svg(group.order, title=f"{orders.subject}, {_rows(group.labels)}")),
        )
        for group in orders.groups
        if group.order is not None
    ]  # fmt: skip


def _words(order: Order) -> str:
    """A named order by its name; one that has none is left to its picture."""
    words = describe(order)
    return "a tree without a name" if words.startswith("(") else words


def _headless(drawing: str) -> Markup:
    """A picture without its heading, which the caption says already."""
    opening = re.search(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)" width="[0-9.]+" height="[0-9.]+"', drawing)
    assert opening is not None
    width, tall = (float(size) for size in opening.groups())
    box = f'viewBox="0 {HEADING} {width:.0f} {tall - HEADING:.0f}"'
    return Markup(drawing.replace(opening.group(), box))


def _rows(labels: tuple[str, ...]) -> str:
    if len(labels) == 1:
        return f"{labels[0]} row" if labels[0] == "1" else f"{labels[0]} rows"
    return f"{', '.join(labels[:-1])} and {labels[-1]} rows"


def _commands(shown: Demonstration) -> list[tuple[str, str]]:
    """What to type to see each statement again."""
    rows = ",".join(map(str, REVEALED_ROWS))
    commands = [
        (f"samebits reveal {STOCK_LINEAR} --k {TERMS} --rows {rows}", "the orders of stock torch"),
        (f"samebits reveal {OUR_LINEAR} --k {TERMS} --rows {rows}", "the one order of samebits"),
        ("samebits check matmul rmsnorm --backend cpu", "every promise of the two rooms, planted faults included"),
        ("samebits demo", "this page"),
    ]
    if shown.example is not None:
        example = shown.example
        again = f"samebits check {example.subject} --promise batch {example.case.options}"
        commands.insert(0, (again, "the first difference"))
    return commands
