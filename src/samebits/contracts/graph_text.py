"""A graph of contracts as text, Mermaid, DOT and JSON. Takes the graph as it is and judges nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from samebits.contracts.graph import SCHEMA, Graph, Node

# (fill, line) by verdict, readable on white and on black paper.
COLOURS: Final = {
    "holds": ("#e0f1e8", "#1c6b45"),
    "does not hold": ("#fbe4e1", "#b3261e"),
    "could not be judged": ("#fdf0d0", "#8a6100"),
    "planned": ("#ffffff", "#8a8f99"),
}


def as_text(graph: Graph) -> str:
    """One line a contract, foundations first; cycles and names that lead nowhere at the end."""
    cycles, width = graph.cycles(), max((len(name) for name in graph.nodes), default=0)
    lines = []
    for name in sorted(graph.nodes) if cycles else graph.order():
        node = graph.nodes[name]
        below = f"rests on {', '.join(node.depends_on)}" if node.depends_on else "rests on nothing"
        lines.append(f"{name:<{width}}  {standing(node):<34}  {below}".rstrip())
    lines += [f"cycle: {' -> '.join(cycle)}" for cycle in cycles]
    lines += [str(each) for each in graph.dangling()]
    bound = sum(node.kind == "bound" for node in graph.nodes.values())
    lines.append(f"{bound} bound, {len(graph.nodes) - bound} planned of {len(graph.nodes)} contracts")
    return "\n".join(lines) + "\n"


def standing(node: Node) -> str:
    """How far a contract got, in a few words."""
    if node.kind == "planned":
        return "planned"
    if all(node.levels.get(backend) is None for backend in node.required):
        return f"not judged, needs {' and '.join(sorted({str(level) for level in node.required.values()}))}"
    return f"{levels_said(node.levels, node.required)}{', stale' if node.stale else ''}"


def levels_said(levels: Mapping[str, int | None], required: Mapping[str, int]) -> str:
    """ "cpu 3 of 4, triton 2 of 3"."""
    shown = ((backend, levels.get(backend), wanted) for backend, wanted in required.items())
    return ", ".join(f"{backend} {0 if level is None else level} of {wanted}" for backend, level, wanted in shown)


def as_mermaid(graph: Graph) -> str:
    """For a document that draws it: an arrow points to what a contract rests on."""
    lines = ["graph RL"]
    for name, node in graph.nodes.items():
        box = f'["{name}<br/>{standing(node)}"]'
        lines.append(f"  {name}{box}:::{_class(node)}")
        lines += [f"  {name} --> {other}" for other in graph.below(name)]
    for verdict, (fill, line) in COLOURS.items():
        dashes = ",stroke-dasharray:4 3" if verdict == "planned" else ""
        lines.append(f"  classDef {verdict.replace(' ', '_')} fill:{fill},stroke:{line},color:#1d1f24{dashes}")
    return "\n".join(lines) + "\n"


def _class(node: Node) -> str:
    return node.verdict.replace(" ", "_")


def as_dot(graph: Graph) -> str:
    """For Graphviz."""
    lines = ["digraph contracts {", "  rankdir=RL;", '  node [shape=box, fontname="sans-serif"];']
    for name, node in graph.nodes.items():
        fill, line = COLOURS[node.verdict]
        style = "dashed" if node.kind == "planned" else "filled"
        label = f'"{name}\\n{standing(node)}"'
        lines.append(f'  "{name}" [label={label}, style={style}, fillcolor="{fill}", color="{line}"];')
        lines += [f'  "{name}" -> "{other}";' for other in graph.below(name)]
    return "\n".join([*lines, "}"]) + "\n"


def as_json(graph: Graph) -> str:
    """All that the graph says, as one document."""
    return json.dumps(as_dict(graph), indent=2) + "\n"


def as_dict(graph: Graph) -> dict[str, Any]:
    cycles = graph.cycles()
    return {
        "schema": SCHEMA,
        "contracts": [
            {
                "name": name,
                "kind": node.kind,
                "depends_on": list(node.depends_on),
                "dependents": graph.above(name),
                "levels": dict(node.levels),
                "required": dict(node.required),
                "verdict": node.verdict,
                "stale": node.stale,
                "obligations": node.obligations,
                "mutants": node.mutants,
                "proofs": node.proofs,
            }
            for name, node in graph.nodes.items()
        ],
        "order": None if cycles else graph.order(),
        "cycles": cycles,
        "dangling": [
            {"name": each.name, "wanted": each.wanted, "path": str(each.path), "line": each.line}
            for each in graph.dangling()
        ],
    }
