"""A folder with a contract is a room; nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from samebits.checker.targets import OPERATORS, all_doors, doors
from samebits.contracts.registry import nearest, rooms


def test_rooms_are_found_by_their_contract_and_sorted(tmp_path: Path) -> None:
    for name in ("zebra", "ant", "_shared"):
        (tmp_path / name).mkdir()
    for name in ("zebra", "ant"):
        (tmp_path / name / "contract.yaml").write_text("contract: x\n")
    found = rooms(tmp_path, "mine")
    assert list(found) == ["ant", "zebra"]
    assert found["ant"].package == "mine.ant" and found["ant"].folder == tmp_path / "ant"


def test_the_operators_are_rooms_with_doors() -> None:
    found = OPERATORS.rooms()
    assert {"matmul", "rmsnorm"} <= set(found)
    for room in found.values():
        contract = room.contract()
        assert contract.contract == room.name
        assert {subject.door for subject in contract.subjects.values()} <= set(doors(room))
    assert {"linear", "matmul", "rmsnorm"} <= set(all_doors(OPERATORS))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere is no folder; a folder of rooms is needed"):
        rooms(tmp_path / "nowhere", "mine")


def test_a_typo_is_answered_with_the_nearest_name() -> None:
    assert nearest("mamtul", ["matmul", "rmsnorm"]) == "did you mean 'matmul'? known: matmul, rmsnorm"
    assert nearest("xyz", ["matmul", "rmsnorm"]) == "known: matmul, rmsnorm"
