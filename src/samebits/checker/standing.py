"""Where every contract stands: levels from receipts, what is stale, what is missing, and the trail of each obligation.

Reads and computes; runs no obligation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from samebits.checker.proving import now, present
from samebits.contracts.graph import graph_of
from samebits.contracts.ladder import Standing, backends_of, level_of, standing
from samebits.contracts.language import BACKENDS
from samebits.contracts.receipts import Store
from samebits.contracts.registry import Room
from samebits.contracts.validating import validate


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
        found[name] = ContractStanding(name=name, required=contract.required("cpu"), standings=each, levels=levels)
    return found


def effective_levels(found: Mapping[str, ContractStanding], rooms: Mapping[str, Room],
                     backend: str) -> dict[str, int | None]:  # fmt: skip
    """Each contract's level with those of all it depends on."""
    levels = {name: each.levels[backend] for name, each in found.items()}
    graph = graph_of({name: rooms[name].contract() for name in found}, levels=levels)
    return {name: graph.effective_level(name) for name in found}


@dataclass(frozen=True, kw_only=True, slots=True)
class Hole:
    """A broken edge between an equation and its evidence."""

    contract: str
    identifier: str
    what: str


def holes(rooms: Mapping[str, Room], found: Mapping[str, ContractStanding]) -> list[Hole]:
    """Work -> equation -> obligation -> test -> binding -> receipt: every edge that leads nowhere."""
    files = {room.contract().path: name for name, room in rooms.items()}
    unbound = validate(list(files), deep=True, known=rooms)
    broken = [Hole(contract=files[each.path], identifier=each.id, what=each.message) for each in unbound]
    for name, room in rooms.items():
        contract = room.contract()
        asked = {contract.subjects[each.subject].equation for each in contract.obligations.values()}
        broken += [
            Hole(contract=name, identifier=each, what="no obligation asks for this equation")
            for each in contract.equations if each not in asked
        ]  # fmt: skip
        for each in found[name].standings:
            if each.failed:
                broken.append(Hole(contract=name, identifier=each.obligation, what=f"{each.backend}: {each.failed}"))
            elif each.level < contract.required(each.backend.rpartition(", ")[2]):
                broken.append(Hole(contract=name, identifier=each.obligation, what=f"{each.backend}: {each.lacks}"))
    return broken
