"""A folder with a contract is a component; nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from samebits.checker.targets import OPERATORS, all_specs, specs
from samebits.contracts.registry import components, nearest


def test_components_are_found_by_their_contract_and_sorted(tmp_path: Path) -> None:
    for name in ("zebra", "ant", "_shared"):
        (tmp_path / name).mkdir()
    for name in ("zebra", "ant"):
        (tmp_path / name / "contract.yaml").write_text("contract: x\n")
    found = components(tmp_path, "mine")
    assert list(found) == ["ant", "zebra"]
    assert found["ant"].package == "mine.ant" and found["ant"].folder == tmp_path / "ant"


def test_the_operators_are_components_with_specs() -> None:
    found = OPERATORS.components()
    assert {"matmul", "rmsnorm"} <= set(found)
    for component in found.values():
        contract = component.contract()
        assert contract.contract == component.name
        assert {subject.spec for subject in contract.subjects.values()} <= set(specs(component))
    assert {"linear", "matmul", "rmsnorm"} <= set(all_specs(OPERATORS))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere is not a folder; pass a folder of components"):
        components(tmp_path / "nowhere", "mine")


def test_a_typo_is_answered_with_the_nearest_name() -> None:
    assert nearest("mamtul", ["matmul", "rmsnorm"]) == "did you mean 'matmul'? known: matmul, rmsnorm"
    assert nearest("xyz", ["matmul", "rmsnorm"]) == "known: matmul, rmsnorm"
