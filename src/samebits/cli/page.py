"""The demo as one HTML page that needs nothing else: text, tables, bit patterns, pictures of orders and of models.

Knows the measurements it is given and takes none."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import jinja2
from markupsafe import Markup

from samebits.cli import model_page
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

if TYPE_CHECKING:
    from samebits.parity.demo_results import Models

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    """One statement of the page in two numbers."""

    words: str
    stock: int
    stock_of: str
    ours: int
    ours_of: str
    wanted: int = 0
    """What samebits' number is where it holds."""


def render(shown: Demonstration, models: Models) -> str:
    """The page."""
    loader = jinja2.FileSystemLoader(TEMPLATES)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    stock, ours = (_pictures(each) for each in shown.orders)
    return environment.get_template("demo.html").render(
        shown=shown,
        example=shown.example,
        swept=_swept(shown),
        counterpart=shown.counterpart,
        stock=stock,
        ours=ours,
        patterns=[_patterns(each) for each in (shown.example, shown.counterpart) if each is not None],
        commands=_commands(shown, models),
        terms=TERMS,
        models=models,
        counts=_counts(shown, models),
        fields=_fields,
        drawn=model_page,
        kept=shown.kept and models.kept,
    )


def _counts(shown: Demonstration, models: Models) -> list[Count]:
    """The page in a few numbers, stock torch beside samebits."""
    rows = [[each for each in shown.sweeps if each.subject.startswith(side)] for side in ("torch.", "samebits.")]
    changed, compared = (
        [sum(getattr(each, name) for each in side) for side in rows] for name in ("changed", "compared")
    )
    found = [
        Count(
            words="rows that change with their batch",
            stock=changed[0],
            stock_of=f"of {compared[0]}",
            ours=changed[1],
            ours_of=f"of {compared[1]}",
        )
    ]
    if models.crowd is not None:
        both = (models.crowd.stock, models.crowd.ours)
        stock, ours = (f"of {len(each.tokens)}" for each in both)
        found.append(
            Count(
                words="logprobs that change with the crowd",
                stock=both[0].differing,
                stock_of=stock,
                ours=both[1].differing,
                ours_of=ours,
            )
        )
    cuts = (models.stock_cuts, models.our_cuts)
    stock, ours = (f"from {len(each.runs)} cuts" for each in cuts)
    hashes = [len({run.digest for run in each.runs}) for each in cuts]
    found.append(
        Count(
            words="checkpoints of one training", stock=hashes[0], stock_of=stock, ours=hashes[1], ours_of=ours, wanted=1
        )
    )
    scores = [[each.stock.comparison for each in models.policies], [each.ours.comparison for each in models.policies]]
    stock, ours = (f"of {sum(each.tokens for each in side)}" for side in scores)
    wrong = [sum(each.mismatched for each in side) for side in scores]
    found.append(
        Count(
            words="tokens on which engine and trainer differ",
            stock=wrong[0],
            stock_of=stock,
            ours=wrong[1],
            ours_of=ours,
        )
    )
    return found


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
            subject=orders.subject,
            rows=_rows(group.labels),
            words=_words(group.order),
            short=digest(group.order)[:12],
            height=height(group.order),
            verdict=group.verdict,
            drawing=headless(svg(group.order, title=f"{orders.subject}, {_rows(group.labels)}")),
        )
        for group in orders.groups
        if group.order is not None
    ]


def _words(order: Order) -> str:
    """A named order by its name; one that has none is left to its picture."""
    words = describe(order)
    return "a tree without a name" if words.startswith("(") else words


def headless(drawing: str) -> Markup:
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


def _commands(shown: Demonstration, models: Models) -> list[tuple[str, str]]:
    """What to type to see each statement again."""
    rows = ",".join(map(str, REVEALED_ROWS))
    commands = [
        (f"samebits reveal {STOCK_LINEAR} --k {TERMS} --rows {rows}", "the orders of stock torch"),
        (f"samebits reveal {OUR_LINEAR} --k {TERMS} --rows {rows}", "the one order of samebits"),
        ("samebits check matmul rmsnorm --backend cpu", "every promise of the two components, planted faults included"),
        ("samebits rl --steps 10", "engine and trainer compared before every update, stock torch beside samebits"),
        ("samebits demo", "this page"),
    ]
    if models.crowd is not None:
        asked = f"--model {models.crowd.model} --chat --prompt {shlex.quote(models.crowd.question)}"
        length = len(models.crowd.ours.tokens)
        again = f"samebits generate {asked} --temperature 0 --max-tokens {length} --logprobs"
        commands.insert(-1, (again, "the answer of samebits, with the bits of its logprobs"))
    if shown.example is not None:
        example = shown.example
        again = f"samebits check {example.subject} --promise batch {example.case.options}"
        commands.insert(0, (again, "the first difference"))
    return commands
