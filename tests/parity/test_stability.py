"""The stability rooms hold on the CPU: every obligation on its written cases, and every planted fault is caught."""

from __future__ import annotations

from pathlib import Path

import pytest

import samebits.parity.stability
from samebits.checker.judging import judge
from samebits.checker.obligations import Judgement
from samebits.checker.planning import plan_room
from samebits.checker.targets import doors
from samebits.contracts.registry import Room, rooms
from samebits.records.report import Verdict

ROOMS = rooms(Path(next(iter(samebits.parity.stability.__path__))), samebits.parity.stability.__name__)
JUDGEMENTS = [each for room in ROOMS.values() for each in plan_room(room, backend="cpu").judgements]


@pytest.mark.parametrize("judgement", JUDGEMENTS, ids=lambda judgement: judgement.obligation)
def test_an_obligation_holds_and_its_faults_are_caught(judgement: Judgement) -> None:
    finding = judge(judgement)
    assert finding.verdict is Verdict.HOLDS, finding.detail
    assert finding.faults_caught == finding.faults_planted >= 1


def test_the_rooms_are_those_that_were_meant() -> None:
    """A folder that lost its contract would no longer be judged, and nobody would notice."""
    assert set(ROOMS) == {
        "buf_size",
        "embed_grad",
        "gemm_args",
        "gpu_init",
        "gradflow",
        "hyperparams",
        "train_stable",
        "training_config",
    }
    assert len(JUDGEMENTS) == sum(len(room.contract().obligations) for room in ROOMS.values())


@pytest.mark.parametrize("room", ROOMS.values(), ids=lambda room: room.name)
def test_a_room_is_complete(room: Room) -> None:
    """Contract, subject, reference, inputs and faults stand side by side."""
    names = {file.name for file in room.folder.iterdir()}
    assert {"__init__.py", "reference.py", "contract.yaml", "check.py", "faults.py"} <= names
    assert room.contract().contract == room.name
    assert {subject.door for subject in room.contract().subjects.values()} <= set(doors(room))
