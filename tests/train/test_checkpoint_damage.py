"""Damage to a checkpoint is detected and named, and the step before it still loads."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.checkpoint_writer import content, same, strays

from samebits.train import checkpoint
from samebits.train.manifest import FILES, MANIFEST, MARKER, WHOLE, CheckpointError, DamagedError, digest_of

SMALL = 3
Document = dict[str, Any]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 1 and 2, written once: syncs are slow, copies are not."""
    made = tmp_path_factory.mktemp("pristine")
    for step in (1, 2):
        checkpoint.write(made, step, **content(step, SMALL))
    return made


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """Steps 1 and 2; it is step 2 that gets damaged."""
    return Path(shutil.copytree(pristine, tmp_path / "run"))


def newest(folder: Path) -> Path:
    return folder / "step-00000002"


def undetected(folder: Path, name: str) -> str | None:
    """None where the damage to a file of step 2 is named and step 1 is read in its place; else what went wrong."""
    try:
        found = checkpoint.read(folder, 2)
        return f"step 2 is read, {'as' if same(found, SMALL) else 'not as'} it was written"
    except DamagedError as error:
        if name not in str(error) or "\n" in str(error):
            return f"the message does not name {name}: {error}"
    found = checkpoint.read(folder)
    if found.step != 1 or not same(found, SMALL):
        return f"step {found.step} is read"
    return None if len(found.skipped) == 1 and name in found.skipped[0] else f"skipped: {found.skipped}"


def truncations(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for name in sorted(WHOLE):
        data = (newest(folder) / name).read_bytes()
        yield from ((newest(folder) / name, data[:length]) for length in range(len(data)))


def flips(folder: Path, number: int, seed: int) -> Iterator[tuple[Path, bytes]]:
    """Single bits, each bit of the directory as likely as any other."""
    files = [(newest(folder) / name, (newest(folder) / name).read_bytes()) for name in sorted(WHOLE)]
    places = [(path, data, bit) for path, data in files for bit in range(8 * len(data))]
    for path, data, bit in random.Random(seed).sample(places, number):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        yield path, bytes(flipped)


def misses(folder: Path, damages: Iterator[tuple[Path, bytes]]) -> tuple[int, list[str]]:
    """(damages done, one after another; those that were not detected)."""
    done, missed = 0, []
    for path, data in damages:
        before = path.read_bytes()
        path.write_bytes(data)
        if wrong := undetected(folder, path.name):
            missed.append(f"{path.name}: {wrong}")
        path.write_bytes(before)
        done += 1
    return done, missed


def test_every_truncation(folder: Path) -> None:
    total = sum((newest(folder) / name).stat().st_size for name in WHOLE)
    assert misses(folder, truncations(folder)) == (total, [])
    assert checkpoint.read(folder).step == 2


def test_a_thousand_bit_flips(folder: Path) -> None:
    assert misses(folder, flips(folder, 1_000, seed=1)) == (1_000, [])
    assert checkpoint.read(folder).step == 2


def unchecked(directory: Path, manifest: object, name: str) -> bytes:
    """Planted fault: a reader that trusts the marker and skips the manifest's sizes and hashes."""
    return (directory / name).read_bytes()


def test_a_reader_that_trusts_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "verified", unchecked)
    _, missed = misses(folder, flips(folder, 200, seed=1))
    assert any("not as it was written" in line for line in missed)


def test_a_damaged_name_of_the_newest(folder: Path) -> None:
    """The steps are judged by themselves; `latest` is named where it cannot be right."""
    latest = folder / "latest"
    text = latest.read_bytes()
    for length in range(len(text)):
        latest.write_bytes(text[:length])
        found = checkpoint.read(folder)
        assert found.step == 2 and same(found, SMALL)
        assert len(found.skipped) == 1 and "latest: holds" in found.skipped[0]
    latest.write_bytes(b"x" * 1_000)
    assert "latest has 1000 bytes; allowed: at most 256" in checkpoint.read(folder).skipped[0]
    latest.unlink()
    assert checkpoint.read(folder).skipped == ()
    latest.write_bytes(b"step-00000001\n")
    assert checkpoint.read(folder).skipped == ()


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_missing_file(folder: Path, name: str) -> None:
    (newest(folder) / name).unlink()
    assert undetected(folder, f"{name} is missing") is None


def test_a_missing_directory(folder: Path) -> None:
    """All of the newest step is gone, and `latest` remembers that it was there."""
    shutil.rmtree(newest(folder))
    found = checkpoint.read(folder)
    assert found.step == 1 and found.skipped == (f"{folder}/latest: names step-00000002, which is not there",)


@pytest.mark.parametrize("name", ["notes.txt", "COMMITTED.part", "weights-2.safetensors"])
def test_an_extra_file(folder: Path, name: str) -> None:
    (newest(folder) / name).write_text("")
    assert undetected(folder, f"holds '{name}'; allowed: COMMITTED, ") is None


@pytest.mark.parametrize("name", sorted(WHOLE))
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.symlink_to(path.parent.parent / "step-00000001" / path.name), "is a link; allowed: a plain"),
        (lambda path: os.mkfifo(path), "is not a regular file"),
        (lambda path: path.mkdir(), "cannot be read: Is a directory"),
    ],
    ids=["link", "pipe", "directory"],
)
def test_no_plain_file(folder: Path, name: str, make: Callable[[Path], None], message: str) -> None:
    """A pipe would make a reader wait for ever, and a link could lead anywhere."""
    (newest(folder) / name).unlink()
    make(newest(folder) / name)
    assert undetected(folder, f"{name} {message}") is None


def test_a_step_under_another_number(folder: Path) -> None:
    shutil.copytree(folder / "step-00000001", folder / "step-00000003")
    found = checkpoint.read(folder)
    assert found.step == 2 and "step-00000003: manifest.json is that of step 1" in found.skipped[0]


def test_a_directory_that_is_a_link(folder: Path) -> None:
    (folder / "step-00000003").symlink_to(newest(folder))
    found = checkpoint.read(folder)
    assert found.step == 2 and found.skipped == (f"{folder}/step-00000003: no directory",)


def forged(folder: Path, change: Callable[[Document], object]) -> None:
    """Step 2 with a changed manifest, and a marker that confirms it."""
    document = json.loads((newest(folder) / MANIFEST).read_bytes())
    change(document)
    data = (json.dumps(document, sort_keys=True, indent=1) + "\n").encode()
    (newest(folder) / MANIFEST).write_bytes(data)
    (newest(folder) / MARKER).write_text(f"{digest_of(data, 'blake3')}\n")


OUTSIDE = ["../step-00000001/state.json", "/etc/passwd", "..", "", "state.json/", "./state.json", "a\0b"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_names_that_point_outside(folder: Path, name: str) -> None:
    """A manifest is a list of three known names: what else it lists is refused, never opened."""
    forged(folder, lambda document: document["files"].update({name: document["files"].pop("state.json")}))
    assert undetected(folder, f"manifest.json lists {name!r}; allowed: optimizer.safetensors, state.json, ") is None


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.update(format=2),
        lambda document: document.update(format=[[]]),
        lambda document: document.update(step="2"),
        lambda document: document.update(step=-2),
        lambda document: document.update(hash="md5"),
        lambda document: document.update(hash="blake2b"),
        lambda document: document.update(hash=[]),
        lambda document: document.update(files=[]),
        lambda document: document.update(more=1),
        lambda document: document.pop("files"),
        lambda document: document["files"].pop("state.json"),
        lambda document: document["files"].update({"state.json": 3}),
        lambda document: document["files"]["state.json"].update(size=-1),
        lambda document: document["files"]["state.json"].update(size=True),
        lambda document: document["files"]["state.json"].update(size=1e3),
        lambda document: document["files"]["state.json"].update(digest=[]),
        lambda document: document["files"]["state.json"].update(path="/etc/passwd"),
        lambda document: document.update(padding="x" * (1 << 17)),
    ],
)
def test_a_forged_manifest(folder: Path, change: Callable[[Document], object]) -> None:
    forged(folder, change)
    assert undetected(folder, MANIFEST) is None or undetected(folder, "state.json") is None


DEEP = 200_000
STATES = {
    "deep list": b"[" * DEEP + b"]" * DEEP,
    "deep object": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "just too deep": b'{"a":' * 66 + b"1" + b"}" * 66,
    "huge": b'{"a": "' + b"x" * (1 << 22) + b'"}',
    "long keys": b'{"' + b"k" * (1 << 21) + b'": [' + b"0," * (1 << 19) + b"{}, 1e999]}",
    "no object": b"[]",
    "no JSON": b"{'a': 1}",
    "twice": b'{"a": 1, "a": 2}',
    "not a number": b'{"a": NaN}',
    "endless": b'{"a": 1e999}',
    "long number": b'{"a": ' + b"9" * 100_000 + b"}",
    "not ASCII": '{"a": "ü"}'.encode(),
    "empty": b"",
}


def vouched(folder: Path, name: str, data: bytes) -> None:
    """A file of step 2 with other bytes, and a manifest and a marker that vouch for them."""
    (newest(folder) / name).write_bytes(data)
    entry = {"size": len(data), "digest": digest_of(data, "blake3")}
    forged(folder, lambda document: document["files"].update({name: entry}))


@pytest.mark.parametrize("state", STATES)
def test_a_forged_state(folder: Path, state: str) -> None:
    """With every hash right, what it says still costs little and is refused in one line."""
    vouched(folder, "state.json", STATES[state])
    assert undetected(folder, "state.json") is None
    with pytest.raises(DamagedError) as caught:
        checkpoint.read(folder, 2)
    assert len(str(caught.value)) < 500


HEADERS = [
    b'{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4]}}',
    b'{"a":{"dtype":"F32"}}',
    b"{}{}",
    b'{"a":{"dtype":"WHAT","shape":[1],"data_offsets":[0,4]}}',
    b"[" * 1_000,
]


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 8, b"\x80\x04pickle", *(len(h).to_bytes(8, "little") + h for h in HEADERS)]
)
def test_forged_tensors(folder: Path, data: bytes) -> None:
    vouched(folder, "weights.safetensors", data)
    assert undetected(folder, "weights.safetensors holds no tensors") is None


def test_everything_is_damaged(folder: Path) -> None:
    """One line that names all of it; what is damaged stays where it is."""
    for step in (1, 2):
        (folder / f"step-0000000{step}" / "weights.safetensors").write_bytes(b"")
    with pytest.raises(
        CheckpointError, match=r"no checkpoint that can be read; .*step-00000002.*; .*step-00000001"
    ) as caught:
        checkpoint.read(folder)
    assert "\n" not in str(caught.value) and checkpoint.committed(folder) == [1, 2]


def unchanged(folder: Path) -> bool:
    return checkpoint.committed(folder) == [1, 2] and not strays(folder) and same(checkpoint.read(folder), SMALL)


def test_a_full_disk(folder: Path) -> None:
    """Whichever file breaks the limit on the size of a file, and wherever: an error, and all is as it was."""
    largest = max((newest(folder) / name).stat().st_size for name in (*FILES, MANIFEST))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in [*range(0, largest, 13), largest - 1]:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            with pytest.raises(
                CheckpointError, match=r"step-00000003: not written: File too large \(.*/step-00000003/"
            ):
                checkpoint.write(folder, 3, **content(3, SMALL), keep=2)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert unchanged(folder), limit
    checkpoint.write(folder, 3, **content(3, SMALL), keep=2)
    assert checkpoint.committed(folder) == [2, 3] and not strays(folder)


@pytest.mark.parametrize("call", ["fsync", "write", "open", "replace", "mkdir"])
def test_every_call_that_fails(folder: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """The n-th call of a kind fails, for every n: the step is whole, or it is not there and an error says so."""
    real, errors = getattr(os, call), 0
    for number in range(100):
        left, said = [number], "committed, but not tidied"

        def failing(*arguments: Any, left: list[int] = left, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == -1:
                raise OSError(errno.EIO, "Input/output error")
            return real(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing)
            try:
                checkpoint.write(folder, 3, **content(3, SMALL))
            except CheckpointError as error:
                said, errors = str(error), errors + 1
        if left[0] >= 0:
            break
        if "committed, but not tidied" in said:
            found = checkpoint.read(folder)
            assert found.step == 3 and same(found, SMALL) and not found.skipped
            shutil.rmtree(folder / "step-00000003")
            (folder / "latest").write_text("step-00000002\n")
        else:
            assert "not written: Input/output error" in said and checkpoint.committed(folder) == [1, 2]
            assert same(checkpoint.read(folder), SMALL) and checkpoint.read(folder).step == 2
    assert left[0] >= 0 and errors and same(checkpoint.read(folder, 3), SMALL) and not strays(folder)


def test_writes_that_take_a_few_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system call may take less than it was given: the bytes are the same."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, bytes(data[:3])))
    first = checkpoint.write(tmp_path / "few", 1, **content(1, SMALL))
    monkeypatch.undo()
    assert checkpoint.digest(first) == checkpoint.digest(checkpoint.write(tmp_path / "all", 1, **content(1, SMALL)))
    assert same(checkpoint.read(tmp_path / "few"), SMALL)


def test_nothing_is_left_when_memory_runs_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is not the disk's passes as it is, and leaves nothing."""

    def full(tensors: dict[str, torch.Tensor]) -> bytes:
        raise MemoryError("no memory")

    monkeypatch.setattr(checkpoint, "_tensor_bytes", full)
    with pytest.raises(MemoryError):
        checkpoint.write(folder, 3, **content(3, SMALL))
    assert unchanged(folder)
