"""Carries out the proof that a contract declares: by its kind, from what the component itself provides.

A proof of a derived kind needs no code of its own. A function that a contract names gives the proof, or the finite
sets that an enumeration runs through. Knows no component."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from samebits.checker.artifacts import artifact_proof
from samebits.checker.exhaustive import enumerate_set
from samebits.checker.targets import import_object, specs
from samebits.checker.tracing import rows_proof
from samebits.contracts.enumeration import Chunk, by_triton, same_on_both
from samebits.contracts.finite import FiniteSet
from samebits.contracts.language import ProofEntry
from samebits.contracts.proof import Proof
from samebits.contracts.registry import Component

PROVERS: Final[Mapping[str, Callable[[Component], Proof]]] = {"dag": rows_proof, "artifact": artifact_proof}
"""How a kind is shown where the contract names no function."""


def carried_out(component: Component, entry: ProofEntry) -> Proof:
    """The proof that an entry declares, run now; a ValueError where it is of another kind than declared."""
    shown = PROVERS[entry.kind](component) if not entry.object else import_object(entry.object)()
    if isinstance(shown, FiniteSet):
        shown = _enumerated(component, entry, [shown])
    elif isinstance(shown, tuple) and all(isinstance(each, FiniteSet) for each in shown):
        shown = _enumerated(component, entry, shown)
    if not isinstance(shown, Proof) or shown.kind != entry.kind:
        found = getattr(shown, "kind", type(shown).__name__)
        raise ValueError(f"{entry.by} gave {found!r}; its contract declares {entry.kind!r}")
    return shown


def _enumerated(component: Component, entry: ProofEntry, sets: Sequence[FiniteSet]) -> Proof:
    """One set on one backend with all obligations of the entry, or several on both for the promise `device`."""
    if len(entry.backends) > 1:
        (identifier,) = entry.obligations
        return _on_both_devices(component, identifier, sets)
    (finite,) = sets
    if entry.backends == ["triton"]:
        return by_triton(enumerate_set, component=component, finite=finite, obligations=entry.obligations)()
    return enumerate_set(component, finite, entry.obligations)


def _on_both_devices(component: Component, identifier: str, sets: Sequence[FiniteSet]) -> Proof:
    contract = component.contract()

    def chunks() -> Iterator[Chunk]:
        for each in sets:
            for number in range(each.parts):
                yield Chunk(arguments=each.part(number), format=each.format, members=each.rows(number))

    return same_on_both(
        contract,
        specs(component)[contract.subjects[contract.obligations[identifier].subject].spec],
        identifier,
        chunks,
        expected=sum(each.members for each in sets),
        bound="; ".join(each.words for each in sets),
    )
