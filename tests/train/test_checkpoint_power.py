"""The power goes at any moment of a write: what the disk may then hold always reads as a whole checkpoint.

A kill loses nothing that a system call was given; a power cut loses all that was not synced, in any mixture. So the
calls of a write are recorded and, after each one, disks are made up that the sync calls so far do not rule out."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.train.checkpoint_writer import content, same

from samebits.train import checkpoint
from samebits.train.manifest import MARKER

SMALL = 3
MIXTURES = 3
CALLS = ("mkdir", "open", "write", "fsync", "replace", "unlink", "rmdir")
Forget = Callable[[Path, int], bool]


class Disk:
    """What of a tree is certain to be on the disk, by inode: bytes of files, names of directories."""

    def __init__(self, root: Path, held: ExitStack, forget: Forget) -> None:
        self.root, self.held, self.forget = root, held, forget
        self.real = {name: getattr(os, name) for name in CALLS}
        self.files: dict[int, bytes] = {}
        self.names: dict[int, dict[str, int]] = {}
        self.paths: dict[int, Path] = {}
        self.syncs: dict[Path, int] = {}
        for path in [root, *sorted(root.rglob("*"))]:
            self.sync(path)

    def sync(self, path: Path) -> None:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            self.names[status.st_ino] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self.files[status.st_ino] = path.read_bytes()

    def hold(self, path: Path) -> None:
        """Keeps an inode from being given to another file while this disk still speaks of it."""
        handle = self.real["open"](path, os.O_RDONLY)
        self.held.callback(os.close, handle)

    def called(self, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        if name == "open":
            self.paths[result] = Path(arguments[0])
        elif name == "fsync":
            path = self.paths[arguments[0]]
            self.syncs[path] = self.syncs.get(path, 0) + 1
            if not self.forget(path, self.syncs[path]):
                self.sync(path)

    def lost(self, folder: Path, pick: Callable[[], float]) -> None:
        """A disk after a cut, made in `folder`: each name and file is as synced where pick() < 0.5, or as it is now."""
        now_files, now_names = {}, {}
        for path in [self.root, *self.root.rglob("*")]:
            if path.is_dir():
                now_names[path.stat().st_ino] = {entry.name: entry.inode() for entry in os.scandir(path)}
            else:
                now_files[path.stat().st_ino] = path.read_bytes()

        def make(inode: int, place: Path) -> None:
            if inode not in self.names and inode not in now_names:
                synced, now = self.files.get(inode, b""), now_files.get(inode, b"")
                place.write_bytes(synced if pick() < 0.5 else now or synced)
                return
            place.mkdir()
            synced_names = self.names.get(inode, {})
            # A directory that is gone has no names but those last synced.
            current = now_names.get(inode, synced_names)
            for name in sorted(synced_names | current):
                chosen = (synced_names if pick() < 0.5 else current).get(name)
                if chosen is not None:
                    make(chosen, place / name)

        make(self.root.stat().st_ino, folder)


def wrong(folder: Path, steps: set[int]) -> str | None:
    """None where every step with a marker is whole and the newest of them is one of `steps`; -1 stands for none."""
    marked = checkpoint._marked(folder, checkpoint._present(folder))
    for step in sorted(marked):
        try:
            if not same(checkpoint.read(folder, step), SMALL):
                return f"step {step} holds what it did not write"
        except ValueError as error:
            return str(error)
    if (newest := max(marked, default=-1)) not in steps:
        return f"the newest step is {newest}; allowed: {steps}"
    lines = checkpoint.read(folder).skipped if marked else ()
    return next((line for line in lines if "not committed" not in line), None)


def cuts(tmp_path: Path, prepare: list[int], keep: int | None, forget: Forget) -> tuple[int, list[str]]:
    """(disks made up, what is wrong with them) over every moment of one write after those of `prepare`."""
    root, made, found, moments = tmp_path / "root", 0, [], random.Random(7)
    root.mkdir()
    folder = root / "runs" / "one"
    for step in prepare:
        checkpoint.write(folder, step, **content(step, SMALL))
    if prepare:
        leftover = folder / "step-00000099"
        leftover.mkdir()
        (leftover / "weights.safetensors").write_bytes(b"half")
    before, new = max(prepare, default=-1), max(prepare, default=-1) + 1
    with ExitStack() as held, pytest.MonkeyPatch.context() as patch:
        disk = Disk(root, held, forget)

        def judge(steps: set[int]) -> None:
            nonlocal made
            if found:
                return
            # All that is not certain is lost; half of it is; a little of it is.
            for pick in [lambda: 0.0, *[moments.random] * MIXTURES, lambda: 2 * moments.random()]:
                place = tmp_path / f"disk-{made}"
                disk.lost(place, pick)
                if line := wrong(place / "runs" / "one", steps):
                    found.append(line)
                made += 1

        def recorded(name: str) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                if name in ("unlink", "rmdir"):
                    disk.hold(Path(arguments[0]))
                result = disk.real[name](*arguments, **options)
                disk.called(name, arguments, result)
                for other, real in disk.real.items():
                    patch.setattr(os, other, real)
                judge({before, new})
                watch()
                return result

            return call

        def watch() -> None:
            for name in CALLS:
                patch.setattr(os, name, recorded(name))

        watch()
        checkpoint.write(folder, new, **content(new, SMALL), keep=keep)
        patch.undo()
        judge({new})
    return made, found


SCENES = {"a first write": ([], None), "a third write": ([1, 2], None), "one that removes": ([1, 2, 3], 2)}


@pytest.mark.parametrize("scene", SCENES)
def test_no_power_cut_is_noticed(tmp_path: Path, scene: str) -> None:
    """After every call, every disk made up reads as the step before or the new one; after the last, as the new one."""
    made, found = cuts(tmp_path, *SCENES[scene], forget=lambda path, number: False)
    assert made > 150 and found == []


FORGOTTEN: dict[str, Forget] = {
    "weights": lambda path, number: path.name == "weights.safetensors",
    "state": lambda path, number: path.name == "state.json",
    "manifest": lambda path, number: path.name == "manifest.json",
    "marker": lambda path, number: path.name == f"{MARKER}.part",
    "latest": lambda path, number: path.name == "latest.part",
    "names, before the marker": lambda path, number: path.name == "step-00000004" and number == 1,
    "names, after the marker": lambda path, number: path.name == "step-00000004" and number == 2,
    "names of steps": lambda path, number: path.name == "one",
    "removal of a marker": lambda path, number: path.name in ("step-00000001", "step-00000002"),
}


@pytest.mark.parametrize("forgotten", FORGOTTEN)
def test_a_forgotten_sync_is_noticed(tmp_path: Path, forgotten: str) -> None:
    """Planted fault: one sync call less."""
    _, found = cuts(tmp_path, *SCENES["one that removes"], forget=FORGOTTEN[forgotten])
    assert found
