"""Every structural proof of every component: expressions of all rows, artifacts of all launches."""

from __future__ import annotations

import pytest

from samebits.checker import artifacts
from samebits.checker.tracing import proofs

ROWS = sorted(name for name in vars(proofs) if name.endswith("_rows"))
ARTIFACTS = sorted(name for name in vars(artifacts) if name.endswith("_artifact"))


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_one_expression(name: str) -> None:
    proof = getattr(proofs, name)()
    assert proof.proved, str(proof)


@pytest.mark.parametrize("name", ARTIFACTS)
def test_artifacts_decide_one_order(name: str) -> None:
    proof = getattr(artifacts, name)()
    assert proof.proved, str(proof)
