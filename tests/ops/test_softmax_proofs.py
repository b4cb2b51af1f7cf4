"""The softmax's proofs, each on a part of its set; what is incomplete or false is not proved."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from samebits.contracts.enumeration import Chunk, enumerated, predicate_of
from samebits.contracts.proof import Proof
from samebits.ops.softmax import arrangement_proofs, order_proofs, proofs
from samebits.ops.softmax.check import SPECS


@pytest.mark.parametrize(
    "proof",
    [
        lambda: proofs.every_pair_of_bfloat16(2),
        proofs.every_number_alone,
        lambda: proofs.every_logarithm_of_a_pair(2),
        proofs.every_exact_shift,
        lambda: proofs.every_constant_row(40),
        lambda: proofs.every_refusal(3),
        lambda: arrangement_proofs.every_arrangement(12),
        lambda: arrangement_proofs.every_arrangement_of_logarithms(12),
        lambda: order_proofs.every_tree(270, 20),
    ],
)
def test_a_part_of_every_proof(proof: Callable[[], Proof]) -> None:
    found = proof()
    assert found.proved, str(found)


def test_every_obligation_has_a_proof() -> None:
    contract = proofs.CONTRACT
    proved = {name for each in contract.proofs.values() if "cpu" in each.backends for name in each.obligations}
    assert set(contract.obligations) == proved


def test_every_difference_of_two_numbers_has_one_pair_in_each_order() -> None:
    """The numbers from -0.5 up to the largest: each float32 difference once, and one that is too large."""
    numbers = np.unique(proofs.finite_numbers("bfloat16").float().numpy())[-600:]
    chunks = list(proofs._pairs_by_difference(600))
    rows = torch.cat([chunk.arguments["x"] for chunk in chunks]).float().numpy()
    first, second = np.split(rows, 2)
    assert np.array_equal(first, second[:, ::-1])
    found = np.minimum(first[:, 0] - first[:, 1], np.float32(proofs.FAR_APART))
    every = np.minimum((numbers[:, None] - numbers[None])[np.tril_indices(600)], np.float32(proofs.FAR_APART))
    assert np.array_equal(np.sort(found), np.unique(every)) and len(found) == proofs._differences(600)


def rows(count: int) -> Iterator[Chunk]:
    for _ in range(count):
        yield Chunk(arguments={"x": torch.ones(4, 2)}, format="float32", members=4)


@pytest.mark.parametrize(
    ("chunks", "twins", "words"),
    [
        (2, {"SM-OB6": ["SM-MU2"]}, "not proved: 8 of 12 cases, 1 of 1 twins refuted"),
        (3, {}, "not proved: 12 of 12 cases, 0 of 0 twins refuted"),
        # Turning the exponent round changes nothing of a constant row: this twin cannot be told apart.
        (3, {"SM-OB6": ["SM-MU4"]}, "not proved: 12 of 12 cases, 0 of 1 twins refuted"),
    ],
)
def test_what_is_incomplete_is_not_proved(chunks: int, twins: dict[str, list[str]], words: str) -> None:
    judges = {"SM-OB6": predicate_of(proofs.CONTRACT, "SM-OB6")}
    found = enumerated(
        proofs.CONTRACT, SPECS["softmax"], lambda: rows(chunks), judges, twins, expected=12, bound="three chunks"
    )
    assert str(found) == words


def test_what_does_not_hold_is_named() -> None:
    judges = {"SM-OB6": lambda call: "wrong" if call.inputs.seed == 1 else ""}
    found = enumerated(
        proofs.CONTRACT, SPECS["softmax"], lambda: rows(3), judges, {}, expected=12, bound="three chunks"
    )
    assert str(found) == "does not hold: SM-OB6: chunk 1: wrong"
