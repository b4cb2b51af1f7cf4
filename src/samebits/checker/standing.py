"""Where every contract stands: levels from receipts, what is stale, what is missing, and the trail of each obligation.

Reads and computes; runs no obligation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from samebits.checker.proving import now, present
from samebits.checker.targets import import_object
from samebits.contracts.ladder import Standing, backends_of, effective, level_of, standing
from samebits.contracts.language import BACKENDS, PROMISES, Contract
from samebits.contracts.predicates import PREDICATES
from samebits.contracts.receipts import Store
from samebits.contracts.registry import Room


@dataclass(frozen=True, kw_only=True, slots=True)
class ContractStanding:
    """One contract: each obligation on each backend, and what follows for the whole."""

    name: str
    required: int
    standings: tuple[Standing, ...]
    levels: dict[str, int | None]
    """Backend to level."""

    @property
    def mutants(self) -> tuple[int, int]:
        """(killed, planted) on the CPU, each obligation's count."""
        own = [each for each in self.standings if each.backend == "cpu"]
        return sum(each.killed for each in own), sum(each.mutants for each in own)

    @property
    def stale(self) -> int:
        return sum(bool(each.stale) for each in self.standings)


def standings(rooms: Mapping[str, Room], store: Store) -> dict[str, ContractStanding]:
    """Every room's standing. A receipt that was edited is a ReceiptError."""
    found = {}
    for name, room in rooms.items():
        contract, receipts, facts = room.contract(), store.read(name), present(room, dict(rooms))
        each = tuple(
            standing(contract, identifier, backend, receipts, now(room, identifier, facts))
            for identifier in contract.obligations
            for backend in backends_of(contract, identifier)
        )
        levels = {backend: level_of(each, backend) for backend in BACKENDS}
        found[name] = ContractStanding(name=name, required=contract.requires_level, standings=each, levels=levels)
    return found


def effective_levels(found: Mapping[str, ContractStanding], rooms: Mapping[str, Room],
                     backend: str) -> dict[str, int | None]:  # fmt: skip
    """Each contract's level with those of all it depends on."""
    levels = {name: each.levels[backend] for name, each in found.items()}
    below = {name: rooms[name].contract().depends_on for name in found}
    return {name: effective(levels, below, name) for name in found}


@dataclass(frozen=True, kw_only=True, slots=True)
class Hole:
    """A broken edge between an equation and its evidence."""

    contract: str
    identifier: str
    what: str


def holes(rooms: Mapping[str, Room], found: Mapping[str, ContractStanding]) -> list[Hole]:
    """Work -> equation -> obligation -> test -> binding -> receipt: every edge that leads nowhere."""
    broken: list[Hole] = []
    for name, room in rooms.items():
        contract = room.contract()
        broken += [Hole(contract=name, identifier=each, what=what) for each, what in _unbound(contract)]
        asked = {contract.subjects[each.subject].equation for each in contract.obligations.values()}
        broken += [
            Hole(contract=name, identifier=each, what="no obligation asks for this equation")
            for each in contract.equations if each not in asked
        ]  # fmt: skip
        for each in found[name].standings:
            if each.failed:
                broken.append(Hole(contract=name, identifier=each.obligation, what=f"{each.backend}: {each.failed}"))
            elif each.level < contract.requires_level:
                broken.append(Hole(contract=name, identifier=each.obligation, what=f"{each.backend}: {each.lacks}"))
    return broken


def _unbound(contract: Contract) -> list[tuple[str, str]]:
    """Names in the contract that lead to nothing importable."""
    named = [
        *((key, each.reference) for key, each in contract.equations.items()),
        *((key, each.object) for key, each in contract.subjects.items()),
        *((key, each.object) for key, each in contract.mutants.items()),
        *((key, each.object) for key, each in contract.proofs.items()),
        *((key, each.name) for key, each in contract.obligations.items() if each.name not in (*PROMISES, *PREDICATES)),
    ]
    problems = []
    for identifier, importable in named:
        try:
            found = import_object(importable)
        except ValueError as error:
            problems.append((identifier, str(error)))
            continue
        if not callable(found):
            problems.append((identifier, f"{importable!r} is {type(found).__name__}; a function is needed"))
    return problems
