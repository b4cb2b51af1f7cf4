"""The graph of contracts as one HTML page that needs nothing else: a picture to read, and a table of the same facts.

Knows the graph it is given and judges nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import jinja2

from samebits.cli.graph_layout import Layout, layered
from samebits.contracts.graph import Graph, Node
from samebits.contracts.graph_text import standing

TEMPLATES: Final = Path(__file__).parent / "templates"
# In the picture's own units.
WIDE: Final = 200
TALL: Final = 58
COLUMN: Final = 272
ROW: Final = 74
MARGIN: Final = 16
ALONE_COLUMNS: Final = 5
VERDICTS: Final = ("holds", "does not hold", "could not be judged", "planned")


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """One contract in the picture."""

    node: Node
    x: float
    y: float
    standing: str
    counts: str
    tone: str
    below: str
    above: str


@dataclass(frozen=True, slots=True)
class Line:
    """One dependency in the picture."""

    low: str
    high: str
    path: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """Boxes and lines, and how large a sheet they need."""

    boxes: list[Box]
    lines: list[Line]
    wide: float
    tall: float
    alone_at: float | None
    """Where the contracts begin that rest on nothing and carry nothing."""
    box_wide: float = WIDE
    box_tall: float = TALL


def render(graph: Graph) -> str:
    """The page. A graph with a cycle has no picture: ValueError."""
    if not graph.nodes:
        raise ValueError("a graph of no contracts has no picture; at least one is needed")
    if cycles := graph.cycles():
        raise ValueError(f"a graph with a cycle has no picture: {' -> '.join(cycles[0])}")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    picture = draw(graph)
    return environment.get_template("graph.html").render(
        picture=picture,
        dangling=[str(each) for each in graph.dangling()],
        counted=counted(graph),
        bound=sum(node.kind == "bound" for node in graph.nodes.values()),
        total=len(graph.nodes),
        stale=sum(node.stale for node in graph.nodes.values()),
        rows=[next(box for box in picture.boxes if box.node.name == name) for name in graph.order()],
    )


def counted(graph: Graph) -> list[tuple[str, str, int]]:
    """(verdict, its class on a page, how many contracts have it), the empty ones too."""
    found = Counter(node.verdict for node in graph.nodes.values())
    return [(verdict, tone(verdict), found[verdict]) for verdict in VERDICTS]


def draw(graph: Graph) -> Picture:
    """The picture: columns from foundations to what rests on them, and a strip for what stands alone."""
    alone = [name for name in graph.nodes if not graph.below(name) and not graph.above(name)]
    tied = {name: graph.below(name) for name in graph.nodes if name not in alone}
    layout = layered(tied) if tied else Layout(places={}, routes={}, columns=0, tall=-1.0)
    columns = max(layout.columns, min(len(alone), ALONE_COLUMNS))
    boxes = [_box(graph, name, *_corner(*place)) for name, place in layout.places.items()]
    # Room for a heading between the picture and the strip.
    strip = MARGIN + (layout.tall + 1) * ROW + 52
    for number, name in enumerate(alone):
        row, column = divmod(number, columns)
        boxes.append(_box(graph, name, MARGIN + column * COLUMN, strip + row * ROW))
    bottom = max(box.y for box in boxes) + TALL + MARGIN
    return Picture(
        boxes=boxes,
        lines=[Line(low, high, _curve(route)) for (low, high), route in layout.routes.items()],
        wide=2 * MARGIN + (columns - 1) * COLUMN + WIDE,
        tall=bottom,
        alone_at=strip if alone else None,
    )


def _corner(column: int, height: float) -> tuple[float, float]:
    return MARGIN + column * COLUMN, MARGIN + height * ROW


def _box(graph: Graph, name: str, x: float, y: float) -> Box:
    node = graph.nodes[name]
    counts = f"{node.obligations} obligations, {node.mutants} mutants, {node.proofs} proofs"
    return Box(
        node=node,
        x=round(x, 1),
        y=round(y, 1),
        standing=standing(node),
        tone=tone(node.verdict),
        counts=counts if node.kind == "bound" else "",
        below=" ".join(graph.dependencies(name)),
        above=" ".join(graph.dependents(name)),
    )


def tone(verdict: str) -> str:
    """The class that colours a verdict on a page."""
    return {"holds": "kept", "does not hold": "changed", "could not be judged": "unjudged"}.get(verdict, "planned")


def _curve(route: list[tuple[int, float]]) -> str:
    """From the right side of a box to the left side of another, level through every column between."""
    points = [(MARGIN + column * COLUMN, MARGIN + height * ROW + TALL / 2) for column, height in route]
    (x, y), pieces = points[0], []
    pieces.append(f"M{x + WIDE:.1f} {y:.1f}")
    for (before_x, before_y), (x, y) in pairwise(points):
        start, half = before_x + WIDE, (x - before_x - WIDE) / 2
        pieces.append(f"C{start + half:.1f} {before_y:.1f} {x - half:.1f} {y:.1f} {x:.1f} {y:.1f}")
        if (x, y) != points[-1]:
            pieces.append(f"H{x + WIDE:.1f}")
    return "".join(pieces)
