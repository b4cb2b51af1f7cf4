"""Attention's proofs, each on a part of its set, and the sizes of caches in numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from samebits.contracts.proof import Proof
from samebits.ops.attention import DenseCache, PagedCache, proofs, trees

SHARE = 256


@pytest.mark.parametrize(
    "proof",
    [
        lambda: proofs.every_short_sequence(SHARE),
        lambda: proofs.every_form(SHARE),
        lambda: proofs.every_full_sequence(SHARE),
        lambda: proofs.every_capped_sequence(SHARE),
        proofs.every_place_in_a_window,
        proofs.every_sharing_of_heads,
        lambda: proofs.every_refusal(2),
        lambda: proofs.every_cache_size(3),
        lambda: proofs.every_split(2),
        lambda: trees.every_tree(70, 5),
    ],
)
def test_a_part_of_every_proof(proof: Callable[[], Proof]) -> None:
    found = proof()
    assert found.proved, str(found)


def test_every_obligation_has_a_proof() -> None:
    contract = proofs.CONTRACT
    proved = {identifier for each in contract.proofs.values() for identifier in each.obligations}
    assert set(contract.obligations) == proved


def test_bytes_of_a_cache() -> None:
    """24 layers of 1024 tokens with 4 key heads of 64 take 48 MiB; a page of 16 tokens takes 16 * 4 * 64 numbers."""
    layer = DenseCache.empty(1, 1024, 4, 64)
    assert 24 * layer.bytes == 50_331_648
    pages = PagedCache.empty([[0], [1, 2]], 4, 64, pages=3, page_size=16)
    assert pages.bytes == 2 * 3 * (16 * 4 * 64) * 4
