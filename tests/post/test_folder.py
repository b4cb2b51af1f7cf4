"""A new model folder is whole or not there: after kills, a full disk, damaged bytes, and beside another writer."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.post.fresh_process import FULL, KILLED, KillAfter, in_a_fork, in_a_process, on_a_full_disk

from samebits.post.folder import JOURNAL, MANIFEST, hidden_folder, new_folder
from samebits.post.layout import Entry, safetensors_layout
from samebits.post.source import Source, digest_of, raw
from samebits.records.durable import put

TENSORS = {
    f"model.layers.{number}.weight": torch.arange(number, number + 24, dtype=torch.float32).reshape(4, 6)
    for number in range(5)
}
ENTRIES = {name: Entry(dtype=tensor.dtype, shape=tuple(tensor.shape)) for name, tensor in TENSORS.items()}
PLAN = {"command": "test"}


def build(path: Path, stop_after: int = 99, shard_bytes: int = 10**9, die: str = "") -> list[str]:
    """Writes the tensors; which of them were computed. `die`: ends the process, or the call, after so many."""
    computed = []
    with new_folder(path, PLAN, safetensors_layout(ENTRIES, shard_bytes)) as folder:
        for name in folder.missing():
            if len(computed) == stop_after:
                if die == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError("stopped")
            with folder.writing(name) as region:
                region.write(raw(TENSORS[name][:2]))
                region.write(raw(TENSORS[name][2:]))
            computed.append(name)
        folder.finish({"model_type": "test"}, {"command": "test"}, lambda manifest: f"# {manifest['command']}\n")
    return computed


def same_tensors(found: dict[str, torch.Tensor]) -> bool:
    return found.keys() == TENSORS.keys() and all(torch.equal(found[name], TENSORS[name]) for name in TENSORS)


def test_one_file_is_what_safetensors_reads(tmp_path: Path) -> None:
    build(tmp_path / "new")
    assert same_tensors(load_file(tmp_path / "new" / "model.safetensors"))
    names = {"README.md", "config.json", "model.safetensors", MANIFEST}
    assert {file.name for file in (tmp_path / "new").iterdir()} == names
    assert not hidden_folder(tmp_path / "new").exists()


def test_shards_and_one_file_hold_the_same(tmp_path: Path) -> None:
    """digest(one file) == digest(five shards), and an index names each tensor's shard."""
    build(tmp_path / "one")
    build(tmp_path / "many", shard_bytes=100)
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) == 5
    found = []
    for name in ("one", "many"):
        with Source(tmp_path / name) as source:
            assert same_tensors({each: source.whole(each) for each in source.entries})
            manifest = json.loads((tmp_path / name / MANIFEST).read_text())
            found.append(
                digest_of(
                    {n: e.described for n, e in source.entries.items()},
                    {k: v["sha256"] for k, v in manifest["tensors"].items()},
                )
            )
    assert found[0] == found[1]


@pytest.mark.parametrize("done", range(6))
def test_a_killed_run_goes_on(done: int, tmp_path: Path) -> None:
    """Killed after any number of tensors there is no folder; the next run computes only what is missing."""
    path = tmp_path / "new"
    ended = in_a_process(build, path, done, 10**9, "kill")
    if done < 5:
        assert ended == KILLED and not path.exists()
        assert not (hidden_folder(path) / "config.json").exists()
        assert build(path) == list(TENSORS)[done:]
    assert same_tensors(load_file(path / "model.safetensors"))


def taken_for_a_model(folder: Path) -> bool:
    return (folder / "config.json").exists()


def whole(folder: Path) -> bool:
    """Every tensor is there, and the manifest, and the card."""
    try:
        with Source(folder) as source:
            found = {name: source.whole(name) for name in source.entries}
    except (OSError, ValueError):
        return False
    return same_tensors(found) and all((folder / name).is_file() for name in ("README.md", MANIFEST))


def die_at_each_call(work: Callable[[Path], object], folder: Path, before: int) -> None:
    """A run for each call to the disk, killed just before it; `before`: after one that was killed at that call.

    Exits with the number of calls, or with HALF where a half-written model could be taken for a whole one."""
    call, status = 0, KILLED
    while status == KILLED:
        call += 1
        path = folder / str(call)
        for number in filter(None, (before, call)):
            status = in_a_fork(KillAfter(number).calls_to_the_disk, work, path)
            if any(taken_for_a_model(each) and not whole(each) for each in (path, hidden_folder(path))):
                os._exit(HALF)
        if status == KILLED and not path.exists():
            work(path)
        if not whole(path):
            os._exit(HALF)
    os._exit(call)


HALF = 255


def build_shards(path: Path) -> None:
    build(path, shard_bytes=200)


def build_in_place(path: Path) -> None:
    """Planted fault: under its own name from the start, and config.json before the weights."""
    path.mkdir(exist_ok=True)
    put(path / "config.json", b"{}")
    save_file(TENSORS, path / "model.safetensors")
    put(path / "README.md", b"")
    put(path / MANIFEST, b"{}")


def test_killed_before_any_call_to_the_disk(tmp_path: Path) -> None:
    """kill -9 before each write, sync, rename, unlink and mkdir of a run: the folder is whole or not there, and a later
    run makes it."""
    assert 30 < in_a_process(die_at_each_call, build_shards, tmp_path / "first", 0) < HALF


@pytest.mark.long
def test_killed_before_any_call_of_a_run_that_goes_on(tmp_path: Path) -> None:
    """The same of a run that goes on where another was killed at one of its last calls."""
    calls = in_a_process(die_at_each_call, build_shards, tmp_path / "first", 0)
    for last in range(2, 6):
        assert 1 < in_a_process(die_at_each_call, build_shards, tmp_path / str(last), calls - last) < HALF


def test_a_folder_that_is_written_in_place_is_seen(tmp_path: Path) -> None:
    assert in_a_process(die_at_each_call, build_in_place, tmp_path, 0) == HALF


def test_damaged_bytes_are_computed_again(tmp_path: Path) -> None:
    """Planted fault: a byte of a finished tensor changes, and the journal's last line is cut."""
    path = tmp_path / "new"
    with pytest.raises(RuntimeError, match="stopped"):
        build(path, 3)
    weights = hidden_folder(path) / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-3 * 96 + 1] ^= 1
    weights.write_bytes(data)
    journal = hidden_folder(path) / JOURNAL
    journal.write_bytes(journal.read_bytes()[:-3])
    names = list(TENSORS)
    assert build(path) == [names[0], *names[2:]]
    assert same_tensors(load_file(path / "model.safetensors"))


def test_another_plan_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "new"
    with pytest.raises(RuntimeError, match="stopped"):
        build(path, 3)
    assert build(path, shard_bytes=100) == list(TENSORS)


@pytest.mark.parametrize("limit", [0, 100, 600, 900])
def test_a_full_disk_leaves_no_folder(limit: int, tmp_path: Path) -> None:
    """A file may grow to so many bytes: the error names the file, the folder is not there, a later run makes it."""
    path = tmp_path / "new"
    assert in_a_process(on_a_full_disk, limit, ".new.part", build, path) == FULL and not path.exists()
    build(path)
    assert same_tensors(load_file(path / "model.safetensors"))


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "new"
    layout = safetensors_layout(ENTRIES)
    with (
        new_folder(path, PLAN, layout),
        pytest.raises(ValueError, match="another process is writing it"),
        new_folder(path, PLAN, layout),
    ):
        pass


@pytest.mark.parametrize("there", ["file", "folder", "link"])
def test_what_is_there_stays(there: str, tmp_path: Path) -> None:
    path = tmp_path / "new"
    if there == "file":
        path.write_text("mine")
    elif there == "folder":
        path.mkdir()
        (path / "mine").write_text("mine")
    else:
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is there already; allowed: a new folder, or an empty one"):
        build(path)
    assert path.is_symlink() or path.read_text() == "mine" if there != "folder" else (path / "mine").exists()


def test_a_region_must_be_filled(tmp_path: Path) -> None:
    """Planted fault: half a tensor."""
    name = next(iter(TENSORS))
    with (
        new_folder(tmp_path / "new", PLAN, safetensors_layout(ENTRIES)) as folder,
        pytest.raises(RuntimeError, match="48 of 96 bytes"),
        folder.writing(name) as region,
    ):
        region.write(raw(TENSORS[name][:2]))
    assert name in folder.missing()
