"""The proofs by enumeration that contracts name: a room's finite set, and the obligations its contract lists for it.

Knows rooms by name only; what is enumerated stands in each room's finite.py."""

from __future__ import annotations

import importlib

from samebits.checker.enumerating import enumerate_set
from samebits.checker.targets import OPERATORS
from samebits.contracts.finite import FiniteSet
from samebits.contracts.proof import Proof


def enumerated(room: str, name: str, parts: range | None = None) -> Proof:
    """Proof `<room>_<name>` of the contract: its own entry says for which obligations; `parts` are for tests."""
    wanted = f"{__name__}:{room}_{name}"
    entries = [entry for entry in OPERATORS.rooms()[room].contract().proofs.values() if entry.object == wanted]
    if len(entries) != 1:
        raise ValueError(f"{room}: {len(entries)} proofs name {wanted}; allowed: one")
    finite: FiniteSet = getattr(importlib.import_module(f"{OPERATORS.package}.{room}.finite"), name)()
    return enumerate_set(room, finite, entries[0].obligations, parts)


def cross_entropy_pairs() -> Proof:
    return enumerated("cross_entropy", "pairs")


def cross_entropy_triples() -> Proof:
    return enumerated("cross_entropy", "triples")


def cross_entropy_squares() -> Proof:
    return enumerated("cross_entropy", "squares")


def cross_entropy_mixtures() -> Proof:
    return enumerated("cross_entropy", "mixtures")


def distill_loss_quadruples() -> Proof:
    return enumerated("distill_loss", "quadruples")


def distill_loss_vocabularies() -> Proof:
    return enumerated("distill_loss", "vocabularies")


def distill_loss_mixtures() -> Proof:
    return enumerated("distill_loss", "mixtures")
