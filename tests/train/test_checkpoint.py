"""A checkpoint gives back what was written, bit for bit, in bytes that depend on nothing else."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.checkpoint_writer import content, same, strays

from samebits.records.durable import only_writer
from samebits.train import checkpoint
from samebits.train.manifest import FILES, MANIFEST, MARKER, CheckpointError, DamagedError

SMALL = 6


def put(folder: Path, step: int, keep: int | None = None) -> Path:
    return checkpoint.write(folder, step, **content(step, SMALL), keep=keep)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def every_file(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def odd_tensors() -> dict[str, torch.Tensor]:
    """Signs of zero, payloads of NaN, every dtype, no elements, no dimensions, views and shared memory."""
    base = torch.tensor([0, -(2**31), 0x7FC00123, -0x400000 + 5, 0x7F800000, 1], dtype=torch.int32).view(torch.float32)
    made = {str(dtype): torch.ones(3, 2).to(dtype) for dtype in checkpoint.DTYPES}
    views = {"again": base, "part": base[2:4], "turned": base.reshape(2, 3).T, "leaf": torch.nn.Parameter(base[:2])}
    return made | views | {"bits": base, "none": torch.zeros(0, 4), "scalar": torch.tensor(-0.0)}


def test_read_is_what_was_written(tmp_path: Path) -> None:
    """read(write(x)) == x, bit for bit."""
    tensors = odd_tensors()
    state = {"a": [1, 2.5, None, True, "ü\ud800\n"], "b": {"deep": {"rate": 0.1, "tiny": 5e-324, "zero": -0.0}}}
    checkpoint.write(tmp_path, 7, weights=tensors, optimizer={}, state=state)
    found = checkpoint.read(tmp_path)
    assert found.step == 7 and found.optimizer == {} and found.skipped == ()
    assert found.weights.keys() == tensors.keys()
    for name, tensor in tensors.items():
        held = found.weights[name]
        assert (held.dtype, held.shape, bits(held)) == (tensor.dtype, tensor.shape, bits(tensor.detach())), name
    assert repr(found.state) == repr(state)


def test_equal_content_is_equal_bytes(tmp_path: Path) -> None:
    """The order of names, shared or strided memory and the folder change no byte of any file."""
    tensors, state = odd_tensors(), {"b": 1, "a": {"d": 2, "c": 3}}
    turned = {name: tensors[name].detach().clone() for name in reversed(tensors)}
    first = checkpoint.write(tmp_path / "one", 3, weights=tensors, optimizer=tensors, state=state)
    other = {"a": {"c": 3, "d": 2}, "b": 1}
    second = checkpoint.write(tmp_path / "two" / "deep", 3, weights=turned, optimizer=turned, state=other)
    assert every_file(first) == every_file(second)
    assert checkpoint.digest(first) == checkpoint.digest(second) == (first / MARKER).read_text().strip()


@pytest.mark.parametrize("part", ["weights", "optimizer", "state", "step"])
def test_other_content_is_another_digest(tmp_path: Path, part: str) -> None:
    """Planted fault: one bit of one number."""
    plain: dict[str, Any] = {
        "weights": {"w": torch.zeros(4)},
        "optimizer": {"m": torch.zeros(4)},
        "state": {"rate": 0.0},
    }
    changes = {"weights": {"w": -torch.zeros(4)}, "optimizer": {"m": -torch.zeros(4)}, "state": {"rate": -0.0}}
    other = plain | {name: change for name, change in changes.items() if name == part}
    first = checkpoint.write(tmp_path / "one", 3, **plain)
    second = checkpoint.write(tmp_path / "two", 4 if part == "step" else 3, **other)
    assert checkpoint.digest(first) != checkpoint.digest(second)


def test_layout_on_the_disk(tmp_path: Path) -> None:
    directory = put(tmp_path, 1200)
    assert directory == tmp_path / "step-00001200" and (tmp_path / "latest").read_text() == "step-00001200\n"
    assert set(every_file(directory)) == {*FILES, MANIFEST, MARKER} and not strays(tmp_path)
    manifest = json.loads((directory / MANIFEST).read_text())
    assert manifest["format"] == 1 and manifest["hash"] == "blake3" and manifest["step"] == 1200
    assert {name: entry["size"] for name, entry in manifest["files"].items()} == {
        name: (directory / name).stat().st_size for name in FILES
    }


def test_keep_removes_the_oldest(tmp_path: Path) -> None:
    for step in range(6):
        put(tmp_path, step, keep=3)
        assert checkpoint.committed(tmp_path) == list(range(6))[max(0, step - 2) : step + 1]
    assert not strays(tmp_path)


def test_keep_leaves_later_steps(tmp_path: Path) -> None:
    """A run that goes back keeps what it just wrote, and what the other run wrote after it."""
    for step in (10, 20, 30):
        put(tmp_path, step)
    put(tmp_path, 15, keep=2)
    assert checkpoint.committed(tmp_path) == [10, 15, 20, 30] and (tmp_path / "latest").read_text() == "step-00000030\n"
    put(tmp_path, 16, keep=2)
    assert checkpoint.committed(tmp_path) == [15, 16, 20, 30]


def test_a_committed_step_is_not_written_over(tmp_path: Path) -> None:
    before = every_file(put(tmp_path, 1))
    with pytest.raises(
        CheckpointError, match=r"step-00000001: is committed already, as blake3:.*; allowed: a step that"
    ):
        checkpoint.write(tmp_path, 1, weights={}, optimizer={}, state={})
    assert every_file(tmp_path / "step-00000001") == before


def test_a_damaged_step_is_moved_aside(tmp_path: Path) -> None:
    """A run that resumed from the step before can write this one again, and nothing is lost."""
    put(tmp_path, 1)
    weights = put(tmp_path, 2) / "weights.safetensors"
    weights.write_bytes(b"")
    put(tmp_path, 2)
    assert checkpoint.read(tmp_path).step == 2 and same(checkpoint.read(tmp_path), SMALL)
    assert (tmp_path / "step-00000002.damaged-1" / "weights.safetensors").read_bytes() == b""


def test_leftovers_are_swept_and_foreign_files_are_not(tmp_path: Path) -> None:
    put(tmp_path, 1)
    for step in ("step-00000002", "step-00000009", "step-00000011"):
        (tmp_path / step).mkdir()
        (tmp_path / step / "weights.safetensors").write_bytes(b"half")
    (tmp_path / "latest.part").write_bytes(b"st")
    (tmp_path / "step-00000009" / "COMMITTED.part").write_bytes(b"bl")
    (tmp_path / "step-00000011" / "notes.txt").write_text("mine")
    (tmp_path / "notes.txt").write_text("mine")
    put(tmp_path, 2)
    assert strays(tmp_path) == [
        "notes.txt",
        "step-00000011",
        "step-00000011/notes.txt",
        "step-00000011/weights.safetensors",
    ]


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    put(tmp_path, 1)
    with only_writer(tmp_path) as alone:
        assert alone
        with pytest.raises(CheckpointError, match="another writer is at work; allowed: one at a time"):
            put(tmp_path, 2)
    assert put(tmp_path, 2).is_dir() and not strays(tmp_path)


def test_a_reader_whose_step_is_removed_reads_a_newer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest step of the listing goes while it is read: no damage, and no error."""
    put(tmp_path, 1)
    real, moved = checkpoint.verified, []

    def slow(directory: Path, *arguments: Any) -> bytes:
        if not moved:
            moved.extend([put(tmp_path, 2, keep=2), put(tmp_path, 3, keep=2)])
        return real(directory, *arguments)

    monkeypatch.setattr(checkpoint, "verified", slow)
    found = checkpoint.read(tmp_path)
    assert found.step == 3 and found.skipped == () and same(found, SMALL) and checkpoint.committed(tmp_path) == [2, 3]


def test_without_blake3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another hash, and the files say so; what the missing one hashed is neither skipped nor written beside."""
    there = put(tmp_path / "blake3", 5)
    monkeypatch.setitem(sys.modules, "blake3", None)
    here = put(tmp_path / "blake2b", 5)
    assert json.loads((here / MANIFEST).read_text())["hash"] == "blake2b"
    assert checkpoint.digest(here).startswith("blake2b:") and same(checkpoint.read(tmp_path / "blake2b"), SMALL)
    message = r"step-00000005: its hash is blake3, whose package is not here; needed: pip install blake3"
    for call in (
        lambda: checkpoint.read(tmp_path / "blake3"),
        lambda: checkpoint.digest(there),
        lambda: checkpoint.committed(tmp_path / "blake3"),
        lambda: put(tmp_path / "blake3", 6),
    ):
        with pytest.raises(CheckpointError, match=message) as caught:
            call()
        assert not isinstance(caught.value, DamagedError)
    monkeypatch.undo()
    assert same(checkpoint.read(tmp_path / "blake2b"), SMALL) and os.listdir(tmp_path / "blake3") != []
    assert checkpoint.committed(tmp_path / "blake3") == [5] and not strays(tmp_path / "blake3")


def looped() -> dict[str, Any]:
    state: dict[str, Any] = {}
    state["again"] = state
    return state


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": -1}, r"step is -1; allowed: 0 to 99999999"),
        ({"step": 10**8}, r"step is 100000000; allowed: 0 to 99999999"),
        ({"step": True}, r"step is True; allowed"),
        ({"keep": 1}, r"keep is 1; allowed: None or at least 2"),
        ({"weights": {"w": [1]}}, r"weights: w is a list; allowed: dense tensors"),
        ({"weights": {"w": torch.zeros(1, device="meta")}}, r"weights: w is a Tensor; allowed: dense tensors"),
        ({"weights": {"w": torch.zeros(2, 2).to_sparse()}}, r"weights: w is a Tensor; allowed: dense tensors"),
        ({"weights": {"w": torch.zeros(1, dtype=torch.complex64)}}, r"weights: w is complex64; allowed: float64, "),
        ({"optimizer": {"__metadata__": torch.zeros(1)}}, r"optimizer has name '__metadata__'; allowed: text"),
        ({"state": {"a": {"rate": float("nan")}}}, r"state\.a\.rate is nan; allowed: finite numbers"),
        ({"state": {"a": [0, {1: 2}]}}, r"state\.a\[1\] has key 1; allowed: text"),
        ({"state": {"a": (1, 2)}}, r"state\.a is a tuple; allowed: dict, list, "),
        ({"state": {"a": 1 << 5000}}, r"state\.a has 5001 bits; allowed: at most 4096"),
        ({"state": looped()}, r"state is nested too deep; allowed: 64 levels"),
        ({"state": {"a": "x" * (1 << 22)}}, r"state has \d+ bytes as JSON; allowed: at most 4194304"),
    ],
)
def test_refused_before_anything_is_written(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    arguments = {"step": 1, "weights": {}, "optimizer": {}, "state": {}} | change
    with pytest.raises(CheckpointError, match=message) as caught:
        checkpoint.write(tmp_path / "run", arguments.pop("step"), **arguments)
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_nothing_to_read(tmp_path: Path) -> None:
    assert checkpoint.committed(tmp_path / "none") == []
    with pytest.raises(CheckpointError, match=r"none: no checkpoint that can be read"):
        checkpoint.read(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"step-00000003: no directory"):
        checkpoint.read(tmp_path, 3)
