"""The graph of contracts: order, cycles as paths, names that lead nowhere with their line, and what a change voids."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import samebits.ops
from samebits.contracts.graph import Graph, Node, graph_of
from samebits.contracts.graph_text import as_dot, as_json, as_mermaid, as_text
from samebits.contracts.loading import load_contract
from samebits.contracts.planned import planned

# Components of every floor: what one rests on may stand on another.
COMPONENTS = sorted(Path(samebits.ops.__path__[0]).parent.rglob("contract.yaml"))
CONTRACTS = {path.parent.name: load_contract(path) for path in COMPONENTS}
WAITING = {name: each.depends_on for name, each in planned().items()}


def graph(**edges: str) -> Graph:
    return Graph([Node(name=name, kind="bound", depends_on=tuple(below.split())) for name, below in edges.items()])


def test_the_components_and_the_planned_stand_in_order() -> None:
    whole = graph_of(CONTRACTS, planned=WAITING)
    assert not whole.cycles() and not whole.dangling()
    order = whole.order()
    assert sorted(order) == sorted(whole.nodes) and len(order) >= 35
    for name in order:
        assert all(order.index(below) < order.index(name) for below in whole.below(name))
    assert {node.kind for node in whole.nodes.values()} == {"bound", "planned"}
    assert "training_loop" in whole.dependents("matmul")


def test_a_cycle_is_a_path() -> None:
    """Planted faults: a ring, a contract that rests on itself, and two rings with a tail."""
    assert graph(a="b", b="c", c="a").cycles() == [["a", "b", "c", "a"]]
    assert graph(a="a").cycles() == [["a", "a"]]
    assert graph(a="b", b="a", c="d", d="c", e="a", f="").cycles() == [["a", "b", "a"], ["c", "d", "c"]]
    assert graph(a="b c", b="", c="b").cycles() == []
    with pytest.raises(ValueError, match="no order: a -> b -> a"):
        graph(a="b", b="a").order()


def test_a_name_that_leads_nowhere_has_a_line(tmp_path: Path) -> None:
    """Planted fault: a dependency on nothing; it becomes no contract."""
    text = next(path for path in COMPONENTS if path.parent.name == "softmax").read_text()
    path = tmp_path / "contract.yaml"
    path.write_text(text.replace("depends_on: []", "depends_on: [nowhere]", 1))
    found = graph_of({"softmax": load_contract(path)})
    (dangling,) = found.dangling()
    assert str(dangling) == f"{path}:6: softmax depends on 'nowhere', which is no contract"
    assert list(found.nodes) == ["softmax"] and found.order() == ["softmax"]
    assert "nowhere" in as_text(found) and json.loads(as_json(found))["dangling"][0]["line"] == 6


def test_what_a_change_voids() -> None:
    shown = graph(a="", b="a", c="b", d="a c", e="")
    assert shown.dependents("a") == ["b", "c", "d"]
    assert shown.dependencies("d") == ["a", "b", "c"]
    assert shown.dependents("e") == []
    with pytest.raises(ValueError, match="'x' is not a contract; known: a, b"):
        shown.dependents("x")


def test_the_level_is_that_of_the_weakest() -> None:
    def node(name: str, level: int | None, *below: str) -> Node:
        return Node(
            name=name,
            kind="bound",
            depends_on=below,
            levels={"cpu": level, "triton": 4},
            required={"cpu": 3, "triton": 4},
        )

    shown = Graph([node("a", 2), node("b", 4, "a"), node("c", None), node("d", 4, "b", "c")])
    assert [shown.effective_level(name, "cpu") for name in "abcd"] == [2, 2, None, None]
    assert [shown.nodes[name].verdict for name in "abc"] == ["could not be judged", "holds", "could not be judged"]
    # Planted fault: a receipt that says no, however high the level.
    assert replace(shown.nodes["b"], failed=True).verdict == "does not hold"
    assert replace(shown.nodes["b"], levels={"cpu": 4, "triton": 3}).verdict == "could not be judged"


def test_a_name_stands_once() -> None:
    twice = Node(name="a", kind="bound", depends_on=())
    with pytest.raises(ValueError, match="contract 'a' appears twice"):
        Graph([twice, twice])


def test_a_planned_contract_goes_when_its_component_comes() -> None:
    whole = graph_of(CONTRACTS, planned={"softmax": ["nowhere"], "later": ["softmax", "never"]})
    assert whole.nodes["softmax"].kind == "bound" and whole.nodes["later"].kind == "planned"
    assert [(each.name, each.wanted) for each in whole.dangling()] == [("later", "never")]
    assert "later" in whole.dependents("softmax")


def test_every_edge_is_drawn() -> None:
    shown = graph_of(CONTRACTS, planned=WAITING, levels={"softmax": {"cpu": 4, "triton": 2}}, stale=["softmax"])
    edges = {(name, below) for name in shown.nodes for below in shown.below(name)}
    mermaid, dot, text = as_mermaid(shown), as_dot(shown), as_text(shown)
    for name, below in edges:
        assert f"  {name} --> {below}\n" in mermaid and f'  "{name}" -> "{below}";\n' in dot
    assert mermaid.count(" --> ") == dot.count(" -> ") == len(edges) > 30
    assert "softmax" in text and "cpu 4 of 4, triton 2 of 4, stale" in text
    document = json.loads(as_json(shown))
    assert {(each["name"], below) for each in document["contracts"] for below in each["depends_on"]} >= edges


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=25))
def test_an_order_or_a_cycle(pairs: list[tuple[int, int]]) -> None:
    """Any edges: either every contract comes after what it rests on, or a cycle is a path along edges."""
    names = [f"n{number}" for number in range(10)]
    below = {name: [f"n{b}" for a, b in pairs if f"n{a}" == name] for name in names}
    shown = Graph([Node(name=name, kind="bound", depends_on=tuple(below[name])) for name in names])
    if cycles := shown.cycles():
        for cycle in cycles:
            assert cycle[0] == cycle[-1] and all(b in below[a] for a, b in pairwise(cycle))
    else:
        order = shown.order()
        assert sorted(order) == names
        assert all(order.index(b) < order.index(a) for a in names for b in below[a])
