"""The enumeration whose smallest part is too long for every day."""

from __future__ import annotations

from samebits.checker.finite_proofs import enumerated


def test_a_part_of_the_quadruples_is_proved() -> None:
    proof = enumerated("distill_loss", "quadruples", range(30, 31))
    assert proof.proved, str(proof)
