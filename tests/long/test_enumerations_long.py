"""The enumeration whose smallest part is too long for every day."""

from __future__ import annotations

from samebits.checker.exhaustive import enumerate_set
from samebits.checker.targets import OPERATORS
from samebits.ops.distill_loss.finite import quadruples


def test_a_part_of_the_quadruples_is_proved() -> None:
    component = OPERATORS.components()["distill_loss"]
    proof = enumerate_set(component, quadruples(), component.contract().proofs["KD-PR1"].obligations, range(30, 31))
    assert proof.proved, str(proof)
