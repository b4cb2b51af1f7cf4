"""Every structural proof of every operator: expressions of all rows, artifacts of all launches."""

from __future__ import annotations

import pytest

from samebits.checker.proofs import PROVERS
from samebits.checker.targets import OPERATORS

COMPONENTS = OPERATORS.components()
TRACED = [name for name, each in COMPONENTS.items() if (each.folder / "triton_cases.py").is_file()]
RECORDED = [name for name, each in COMPONENTS.items() if (each.folder / "artifacts.json").is_file()]


def test_operators_are_found() -> None:
    assert len(TRACED) >= 15 and len(RECORDED) >= 11


@pytest.mark.parametrize("name", TRACED)
def test_rows_are_one_expression(name: str) -> None:
    proof = PROVERS["dag"](COMPONENTS[name])
    assert proof.proved, str(proof)


@pytest.mark.parametrize("name", RECORDED)
def test_artifacts_decide_one_order(name: str) -> None:
    proof = PROVERS["artifact"](COMPONENTS[name])
    assert proof.proved, str(proof)
