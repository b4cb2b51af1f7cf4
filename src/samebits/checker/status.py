"""Where every contract stands: levels from receipts, what is stale, what is missing, and the trail of each obligation.

Reads and computes; runs no obligation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from samebits.checker.present import Present
from samebits.contracts.graph import graph_of
from samebits.contracts.ladder import Standing, about, backends_of, level_of, standing
from samebits.contracts.language import BACKENDS
from samebits.contracts.receipts import Compared, compared
from samebits.contracts.registry import Component
from samebits.contracts.store import Store
from samebits.contracts.validating import validate


@dataclass(frozen=True, kw_only=True, slots=True)
class ContractStanding:
    """One contract: each obligation on each backend, and what follows for the whole."""

    name: str
    required: dict[str, int]
    """Backend to level; only backends that the contract has."""
    standings: tuple[Standing, ...]
    levels: dict[str, int | None]
    """Backend to level."""
    receipts: tuple[Compared, ...]
    """Every receipt beside the present."""
    false: tuple[str, ...] = ()
    """Lines of the store whose content and id disagree."""
    outdated: int = 0
    """Lines of an older schema, which count for nothing."""

    def on(self, backend: str) -> list[Standing]:
        """The obligations that are about a backend."""
        return [each for each in self.standings if about(each.backend, backend)]

    def shown_on(self, backend: str) -> list[str]:
        """Machines on which what counts was shown."""
        return list(dict.fromkeys(machine for each in self.on(backend) for machine in each.shown_on))

    def here(self, backend: str) -> tuple[int, int]:
        """(made on what is here, all that count)."""
        own = self.on(backend)
        return sum(each.here for each in own), sum(each.counted for each in own)

    def stale(self, backend: str) -> dict[str, int]:
        """What changed since receipts were made that nothing replaces, with how many of them each made stale."""
        found: dict[str, int] = {}
        for line in (line for each in self.on(backend) for line in each.stale):
            for reason in line.partition(": ")[2].split("; "):
                found[reason] = found.get(reason, 0) + 1
        return found

    def verdict(self, backend: str) -> str:
        """holds, does not hold, could not be judged."""
        verdicts = [each.verdict for each in self.on(backend)]
        if self.false or "does not hold" in verdicts:
            return "does not hold"
        return "could not be judged" if "could not be judged" in verdicts or not verdicts else "holds"

    def least(self, backend: str) -> Standing | None:
        """The obligation that is furthest from what is required."""
        return min(self.on(backend), key=lambda each: (not each.failed, each.level), default=None)


def standings(
    components: Mapping[str, Component], store: Store, names: Iterable[str] | None = None
) -> dict[str, ContractStanding]:
    """Every contract's standing, or only of these and of all that they depend on."""
    found, present = {}, Present(components)
    wanted = {*components} if names is None else _with_dependencies(components, names)
    for name, component in components.items():
        if name not in wanted:
            continue
        contract, shelf = component.contract(), store.look(name)
        beside = tuple(compared(each, present.of(each)) for each in shelf.receipts)
        each = tuple(
            standing(contract, identifier, backend, beside)
            for identifier in contract.obligations
            for backend in backends_of(contract, identifier)
        )
        found[name] = ContractStanding(
            name=name,
            required={backend: contract.required(backend) for backend in contract.backends},
            standings=each,
            levels={backend: level_of(each, backend) for backend in BACKENDS},
            receipts=beside,
            false=shelf.false,
            outdated=shelf.outdated,
        )
    return found


def _with_dependencies(components: Mapping[str, Component], names: Iterable[str]) -> set[str]:
    found, waiting = set[str](), list(names)
    while waiting:
        name = waiting.pop()
        if name in components and name not in found:
            found.add(name)
            waiting += components[name].contract().depends_on
    return found


def shortfalls(found: Mapping[str, ContractStanding], backend: str | None = None) -> list[str]:
    """One line for each contract and backend that does not stand where it must, with what renews it."""
    lines = []
    for name, each in found.items():
        lines += [f"{name}: false: {line}" for line in each.false]
        for on in each.required if backend is None else [backend] if backend in each.required else []:
            verdict, least = each.verdict(on), each.least(on)
            if verdict == "holds" or least is None:
                continue
            why = least.failed or least.lacks
            stale = ", ".join(each.stale(on))
            stale = f"; stale: {stale}" if stale else ""
            lines.append(
                f"{name} on {on}: level {each.levels[on]} of {each.required[on]}: {least.obligation}: {why}"
                f"{stale}; renew with `samebits contract prove {name} --backend {on}`"
            )
    return lines


def effective_levels(
    found: Mapping[str, ContractStanding], components: Mapping[str, Component], backend: str
) -> dict[str, int | None]:
    """Each contract's level with those of all it depends on."""
    levels = {name: each.levels for name, each in found.items()}
    graph = graph_of({name: components[name].contract() for name in found}, levels=levels)
    return {name: graph.effective_level(name, backend) for name in found}


@dataclass(frozen=True, kw_only=True, slots=True)
class Hole:
    """A broken edge between an equation and its evidence."""

    contract: str
    identifier: str
    what: str


def holes(components: Mapping[str, Component], found: Mapping[str, ContractStanding]) -> list[Hole]:
    """Work -> equation -> obligation -> test -> binding -> receipt: every edge that leads nowhere."""
    files = {component.contract().path: name for name, component in components.items()}
    unbound = validate(list(files), deep=True, known=components)
    broken = [Hole(contract=files[each.path], identifier=each.id, what=each.message) for each in unbound]
    for name, component in components.items():
        contract = component.contract()
        asked = {contract.subjects[each.subject].equation for each in contract.obligations.values()}
        broken += [
            Hole(contract=name, identifier=each, what="no obligation asks for this equation")
            for each in contract.equations
            if each not in asked
        ]
        broken += [Hole(contract=name, identifier="receipts", what=f"false: {line}") for line in found[name].false]
        for each in found[name].standings:
            if each.verdict != "holds":
                stale = f"; stale: {'; '.join(each.stale)}" if each.stale else ""
                what = f"{each.backend}: {each.verdict}: {each.failed or each.lacks}{stale}"
                broken.append(Hole(contract=name, identifier=each.obligation, what=what))
    return broken
