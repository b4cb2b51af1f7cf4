"""The graph of contracts with the levels that their receipts reach. Reads receipts and sources; runs nothing."""

from __future__ import annotations

from collections.abc import Mapping

from samebits.checker.status import ContractStanding
from samebits.contracts.graph import Graph, graph_of
from samebits.contracts.planned import planned
from samebits.contracts.registry import Component


def standing_graph(
    known: Mapping[str, Component], found: Mapping[str, ContractStanding], *, with_planned: bool = True
) -> Graph:
    """Contracts as they stand, and those that are only planned.

    Stale is one whose level is missing because receipts expired; what others replace, or nobody asks for, is not."""
    verdicts = {name: {backend: each.verdict(backend) for backend in each.required} for name, each in found.items()}
    return graph_of(
        {name: component.contract() for name, component in known.items()},
        levels={name: each.levels for name, each in found.items()},
        stale={
            name
            for name in found
            if any(said != "holds" and found[name].stale(on) for on, said in verdicts[name].items())
        },
        failed={name for name, said in verdicts.items() if "does not hold" in said.values()},
        planned={name: each.depends_on for name, each in planned().items()} if with_planned else {},
    )
