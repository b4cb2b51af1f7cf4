"""Which contract rests on which: order, cycles, names that lead nowhere, and what must be judged again after a change.

Knows names, levels and counts; who loads contracts and judges them fills them in."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from samebits.contracts.language import Contract
from samebits.contracts.planned import FOLDER
from samebits.contracts.strict_yaml import ContractError, load

SCHEMA: Final = "samebits.contract.graph/1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One contract as the graph sees it."""

    name: str
    kind: str
    """Either "bound", where there is a file, or "planned"."""
    depends_on: tuple[str, ...]
    levels: Mapping[str, int | None] = field(default_factory=dict)
    """Backend to the level reached; None where nothing is about it."""
    required: Mapping[str, int] = field(default_factory=dict)
    """Backend to the level it must reach."""
    obligations: int = 0
    mutants: int = 0
    proofs: int = 0
    stale: bool = False
    failed: bool = False
    """A receipt says that something does not hold."""
    path: Path | None = None

    @property
    def verdict(self) -> str:
        if self.kind == "planned":
            return "planned"
        if self.failed:
            return "does not hold"
        # Too little evidence is no failure, and no pass either.
        reached = [(self.levels.get(backend), required) for backend, required in self.required.items()]
        holds = reached and all(level is not None and level >= required for level, required in reached)
        return "holds" if holds else "could not be judged"


@dataclass(frozen=True, kw_only=True, slots=True)
class Dangling:
    """A dependency on a contract that there is not."""

    name: str
    wanted: str
    path: Path | None
    line: int

    def __str__(self) -> str:
        return f"{self.path or self.name}:{self.line}: {self.name} depends on {self.wanted!r}, which is no contract"


def node_of(
    contract: Contract, *, levels: Mapping[str, int | None] | None = None, stale: bool = False, failed: bool = False
) -> Node:
    """The node of a loaded contract; its levels are the ladder's to say."""
    return Node(
        name=contract.contract,
        kind="bound",
        depends_on=tuple(contract.depends_on),
        levels=levels or {},
        required={each: contract.required(each) for each in contract.backends},
        obligations=len(contract.obligations),
        mutants=len(contract.mutants),
        proofs=len(contract.proofs),
        stale=stale,
        failed=failed,
        path=contract.path,
    )


def graph_of(
    contracts: Mapping[str, Contract],
    *,
    levels: Mapping[str, Mapping[str, int | None]] | None = None,
    stale: Iterable[str] = (),
    failed: Iterable[str] = (),
    planned: Mapping[str, Sequence[str]] | None = None,
) -> Graph:
    """The graph of loaded contracts and of those only planned, unless a file has replaced them."""
    known, expired, wrong = levels or {}, set(stale), set(failed)
    nodes = [
        node_of(each, levels=known.get(name), stale=name in expired, failed=name in wrong)
        for name, each in contracts.items()
    ]
    for name, depends_on in (planned or {}).items():
        if name not in contracts:
            path = FOLDER / f"{name}.yaml"
            nodes.append(Node(name=name, kind="planned", depends_on=tuple(depends_on), path=path))
    return Graph(nodes)


class Graph:
    """Contracts by name, sorted, and what each rests on. Any edges are taken; `cycles` and `dangling` judge them."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes: dict[str, Node] = {}
        for node in sorted(nodes, key=lambda each: each.name):
            if node.name in self.nodes:
                raise ValueError(f"contract {node.name!r} appears twice: {self.nodes[node.name].path} and {node.path}")
            self.nodes[node.name] = node
        self._above: dict[str, list[str]] = {name: [] for name in self.nodes}
        for node in self.nodes.values():
            for name in self.below(node.name):
                self._above[name].append(node.name)

    def below(self, name: str) -> list[str]:
        """What a contract rests on directly, without names that lead nowhere."""
        return sorted({each for each in self.nodes[name].depends_on if each in self.nodes})

    def above(self, name: str) -> list[str]:
        """What rests on a contract directly."""
        return self._above[name]

    def dangling(self) -> list[Dangling]:
        """Every dependency that is no contract, with the line where it is named."""
        return [
            Dangling(name=node.name, wanted=wanted, path=node.path, line=_line(node))
            for node in self.nodes.values()
            for wanted in node.depends_on
            if wanted not in self.nodes
        ]

    def cycles(self) -> list[list[str]]:
        """Paths that come back to their first name. Cycles that share a contract show one after the other is gone."""
        found, left = [], set(self.nodes)
        while left := self._knotted(left):
            # Whatever is left rests on something that is left, so that walking down must come round.
            walked = [min(left)]
            while (following := min(set(self.below(walked[-1])) & left)) not in walked:
                walked.append(following)
            cycle = walked[walked.index(following) :]
            first = cycle.index(min(cycle))
            found.append([*cycle[first:], *cycle[:first], cycle[first]])
            left -= set(cycle)
        return found

    def order(self) -> list[str]:
        """Every contract after all that it rests on; of several that may come next the first by name."""
        if cycles := self.cycles():
            raise ValueError(f"no order: {'; '.join(' -> '.join(cycle) for cycle in cycles)}")
        return self._peeled(set(self.nodes))

    def dependents(self, name: str) -> list[str]:
        """All that rests on a contract, at whatever distance, in the order in which to judge it again."""
        return self._reached(name, self.above)

    def dependencies(self, name: str) -> list[str]:
        """All that a contract rests on, at whatever distance, foundations first."""
        return self._reached(name, self.below)

    def effective_level(self, name: str, backend: str) -> int | None:
        """The lowest level of a contract and of all that it rests on; None where one of them was not judged."""
        levels = [self.nodes[each].levels.get(backend) for each in (name, *self.dependencies(name))]
        judged = [level for level in levels if level is not None]
        return min(judged) if len(judged) == len(levels) else None

    def _reached(self, name: str, neighbours: Any) -> list[str]:
        if name not in self.nodes:
            raise ValueError(f"{name!r} is not a contract; known: {', '.join(self.nodes)}")
        seen, waiting = {name}, [name]
        while waiting:
            fresh = set(neighbours(waiting.pop())) - seen
            seen |= fresh
            waiting.extend(fresh)
        return [each for each in self.order() if each in seen and each != name]

    def _peeled(self, among: set[str]) -> list[str]:
        """Names of `among` in order, as far as there is one."""
        open_below = {name: len(set(self.below(name)) & among) for name in among}
        ready = sorted(name for name, count in open_below.items() if not count)
        done = []
        while ready:
            done.append(heapq.heappop(ready))
            for name in self.above(done[-1]):
                if name in open_below:
                    open_below[name] -= 1
                    if not open_below[name]:
                        heapq.heappush(ready, name)
        return done

    def _knotted(self, among: set[str]) -> set[str]:
        return among - set(self._peeled(among))


def _line(node: Node) -> int:
    """Where the dependencies stand in the node's file."""
    if node.path is None:
        return 1
    try:
        lines = load(node.path).lines
    except ContractError:
        return 1
    return lines.get("depends_on", 1)
