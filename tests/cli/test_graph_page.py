"""The picture of the graph: foundations to the left, no box on another, every line drawn, nothing loaded."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import samebits.ops
from samebits.cli.graph_layout import layered
from samebits.cli.graph_page import TALL, WIDE, draw, render
from samebits.contracts.graph import Graph, Node, graph_of
from samebits.contracts.loading import load_contract
from samebits.contracts.planned import planned

COMPONENTS = sorted(Path(samebits.ops.__path__[0]).parent.rglob("contract.yaml"))
CONTRACTS = {path.parent.name: load_contract(path) for path in COMPONENTS}
WAITING = {name: each.depends_on for name, each in planned().items()}


def graph(**edges: str) -> Graph:
    return Graph([Node(name=name, kind="bound", depends_on=tuple(below.split())) for name, below in edges.items()])


def test_the_page_of_the_components() -> None:
    whole = graph_of(
        CONTRACTS,
        planned=WAITING,
        levels={name: {"cpu": 3, "triton": 3} for name in CONTRACTS if name != "gelu"},
        stale=["rope"],
    )
    page = render(whole)
    assert page.count('<g class="box') == len(whole.nodes)
    assert page.count('<path class="edge"') == sum(len(whole.below(name)) for name in whole.nodes)
    assert page.count(">stale</text>") == 1 and "not judged, needs" in page
    assert page.count('class="box planned"') == sum(node.kind == "planned" for node in whole.nodes.values())
    assert not re.search(r"(src|href)=|@import|url\(|https?:", page)


def test_no_box_stands_on_another() -> None:
    picture = draw(graph_of(CONTRACTS, planned=WAITING))
    for one, other in combinations(picture.boxes, 2):
        assert abs(one.x - other.x) >= WIDE or abs(one.y - other.y) >= TALL, (one.node.name, other.node.name)
    assert all(0 <= box.x <= picture.wide - WIDE and 0 <= box.y <= picture.tall - TALL for box in picture.boxes)


def test_a_line_goes_through_no_box() -> None:
    """Where a line passes a column it keeps clear of the boxes that stand there."""
    whole = graph_of(CONTRACTS, planned=WAITING)
    layout = layered({name: whole.below(name) for name in whole.nodes})
    for route in layout.routes.values():
        for column, height in route[1:-1]:
            assert all(abs(height - y) > 0.5 for x, y in layout.places.values() if x == column)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=30))
def test_foundations_stand_to_the_left(pairs: list[tuple[int, int]]) -> None:
    """Any graph without cycles; boxes of a column keep a box's distance."""
    below = {
        f"n{number:02}": sorted({f"n{min(p):02}" for p in pairs if max(p) == number != min(p)}) for number in range(12)
    }
    layout = layered(below)
    assert set(layout.routes) == {(low, name) for name in below for low in below[name]}
    for (low, name), route in layout.routes.items():
        assert route[0] == layout.places[low] and route[-1] == layout.places[name]
        assert [column for column, _ in route] == list(range(route[0][0], route[-1][0] + 1))
    for one, other in combinations(layout.places.values(), 2):
        assert one[0] != other[0] or abs(one[1] - other[1]) >= 1 - 1e-9


def test_what_has_no_picture() -> None:
    """Planted faults: a cycle, and no contract at all."""
    with pytest.raises(ValueError, match="a graph with a cycle has no picture: a -> b -> a"):
        render(graph(a="b", b="a"))
    with pytest.raises(ValueError, match="no contracts"):
        render(Graph([]))
    with pytest.raises(ValueError, match="without cycles; stuck at 'a'"):
        layered({"a": ["b"], "b": ["a"]})


def test_a_name_that_leads_nowhere_is_on_the_page() -> None:
    assert "a depends on &#39;nowhere&#39;, which is no contract" in render(graph(a="nowhere", b=""))
