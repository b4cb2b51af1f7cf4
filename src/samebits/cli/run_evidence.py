"""What a training run rests on, for its page: orders of addition, promises shown by operator, the graph of contracts.

Speaks of the samebits that writes the page, from receipts; runs no obligation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from samebits.checker.promises import MODULES
from samebits.checker.status import ContractStanding, standings
from samebits.checker.targets import OPERATORS
from samebits.cli import graph_page
from samebits.cli.commands.contract_components import known_components, store_of
from samebits.cli.page import headless
from samebits.cli.standing_graph import standing_graph
from samebits.contracts.graph import Graph
from samebits.contracts.language import BACKENDS
from samebits.contracts.registry import Component
from samebits.numerics.order import Fused, Order, chain, lanes
from samebits.numerics.picture import svg

# What a run is, in the graph of contracts: all that it rests on is on the page.
RUN: Final = "training_loop"
# Few enough terms to see; the real sums are as long as a row or a batch.
DRAWN: Final[Mapping[str, tuple[str, Order]]] = {
    "chain-1": ("one fused multiply-add a step", chain(16)),
    "chain-16": ("sixteen products at a time on the matrix units", chain(32, 16, Fused())),
    "lanes-256": ("a chain a lane, lanes folded by halves; drawn with 4 lanes for 256", lanes(16, 4)),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaredOrder:
    """An order that sums of this run have."""

    name: str
    words: str
    operators: tuple[str, ...]
    drawing: Markup


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """The level to which a promise of an operator was shown on a backend."""

    backend: str
    level: int
    verdict: str
    tone: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Everything below the curves of a page."""

    orders: list[DeclaredOrder]
    promises: list[str]
    matrix: dict[str, dict[str, list[Shown]]]
    """Operator to promise to what was shown of it, backend by backend."""
    picture: graph_page.Picture
    counted: list[tuple[str, str, int]]


def evidence(settings: Mapping[str, Any]) -> Evidence:
    """Of the samebits that is installed, for a run with these settings."""
    known = known_components(None)
    found = standings(known, store_of(None))
    graph = below(standing_graph(known, found), RUN)
    operators = [name for name in graph.order() if name in OPERATORS.components()]
    backend = "triton" if str(settings.get("training.device", "cpu")).startswith("cuda") else "cpu"
    matrix = {name: shown(found[name], known[name]) for name in operators}
    return Evidence(
        orders=declared(known, operators, backend, str(settings.get("training.dtype", "float32"))),
        promises=[each for each in MODULES if any(each in row for row in matrix.values())],
        matrix={name: row for name, row in matrix.items() if row},
        picture=graph_page.draw(graph),
        counted=graph_page.counted(graph),
    )


def below(graph: Graph, name: str) -> Graph:
    """A contract and all that it rests on."""
    kept = {name, *graph.dependencies(name)}
    return Graph(node for node in graph.nodes.values() if node.name in kept)


def shown(standing: ContractStanding, component: Component) -> dict[str, list[Shown]]:
    """Of every promise that a contract asks for, the lowest level of its obligations on each backend."""
    names = {identifier: each.name for identifier, each in component.contract().obligations.items()}
    found: dict[str, list[Shown]] = {}
    for promise in MODULES:
        for backend in BACKENDS:
            of = [each for each in standing.on(backend) if names[each.obligation] == promise]
            if of:
                least = min(of, key=lambda each: (not each.failed, each.level))
                tone = graph_page.tone(least.verdict)
                one = Shown(backend=backend, level=least.level, verdict=least.verdict, tone=tone)
                found.setdefault(promise, []).append(one)
    return found


def declared(known: Mapping[str, Component], operators: Iterable[str], backend: str, dtype: str) -> list[DeclaredOrder]:
    """The declared orders of these operators, each drawn once."""
    used: dict[str, list[str]] = {}
    for operator in operators:
        for subject in known[operator].contract().subjects.values():
            order = subject.orders.get(backend, {}).get(dtype)
            if order and operator not in used.setdefault(order, []):
                used[order].append(operator)
    return [
        DeclaredOrder(
            name=name,
            words=DRAWN[name][0],
            operators=tuple(used[name]),
            drawing=headless(svg(DRAWN[name][1], title=name)),
        )
        for name in DRAWN
        if name in used
    ]
