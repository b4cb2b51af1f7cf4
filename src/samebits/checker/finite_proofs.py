"""The proofs by enumeration that contracts name: a component's finite set, and the obligations its contract lists for
it.

Knows components by name only; what is enumerated is in each component's finite.py."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from functools import partial

from samebits.checker.exhaustive import enumerate_set
from samebits.checker.targets import OPERATORS, specs
from samebits.contracts.enumeration import Chunk, backend, by_triton, same_on_both
from samebits.contracts.finite import FiniteSet
from samebits.contracts.proof import Proof


def enumerated(component: str, name: str, parts: range | None = None) -> Proof:
    """Proof `<component>_<name>` of the contract: its own entry says for which obligations; `parts` are for tests."""
    wanted = f"{__name__}:{component}_{name}{'_by_triton' if backend() == 'triton' else ''}"
    entries = [
        entry for entry in OPERATORS.components()[component].contract().proofs.values() if entry.object == wanted
    ]
    if len(entries) != 1:
        raise ValueError(f"{component}: {len(entries)} proofs name {wanted}; allowed: one")
    return enumerate_set(component, _set(component, name), entries[0].obligations, parts)


def _set(component: str, name: str) -> FiniteSet:
    found: FiniteSet = getattr(importlib.import_module(f"{OPERATORS.package}.{component}.finite"), name)()
    return found


def on_both_devices(component: str, identifier: str, names: Sequence[str]) -> Proof:
    """The promise `device` on some of a contract's finite sets."""
    home, sets = OPERATORS.components()[component], [_set(component, name) for name in names]
    contract = home.contract()

    def chunks() -> Iterator[Chunk]:
        for each in sets:
            for number in range(each.parts):
                yield Chunk(arguments=each.part(number), format=each.format, members=each.rows(number))

    spec = specs(home)[contract.subjects[contract.obligations[identifier].subject].spec]
    return same_on_both(
        contract,
        spec,
        identifier,
        chunks,
        expected=sum(each.members for each in sets),
        bound="; ".join(each.words for each in sets),
    )


cross_entropy_grid_of_pairs = partial(enumerated, "cross_entropy", "grid_of_pairs")
cross_entropy_triples = partial(enumerated, "cross_entropy", "triples")
cross_entropy_squares = partial(enumerated, "cross_entropy", "squares")
cross_entropy_mixtures = partial(enumerated, "cross_entropy", "mixtures")
distill_loss_quadruples = partial(enumerated, "distill_loss", "quadruples")
distill_loss_vocabularies = partial(enumerated, "distill_loss", "vocabularies")
distill_loss_mixtures = partial(enumerated, "distill_loss", "mixtures")
cross_entropy_pairs_by_triton = by_triton(partial(enumerated, "cross_entropy", "pairs"))
cross_entropy_triples_by_triton = by_triton(cross_entropy_triples)
cross_entropy_squares_by_triton = by_triton(cross_entropy_squares)
cross_entropy_mixtures_by_triton = by_triton(cross_entropy_mixtures)
distill_loss_quadruples_by_triton = by_triton(distill_loss_quadruples)
distill_loss_vocabularies_by_triton = by_triton(distill_loss_vocabularies)
distill_loss_mixtures_by_triton = by_triton(distill_loss_mixtures)
cross_entropy_on_both = partial(on_both_devices, "cross_entropy", "CE-OB107", ("squares", "mixtures"))
distill_loss_on_both = partial(on_both_devices, "distill_loss", "KD-OB107", ("vocabularies", "mixtures"))
