"""A new model folder that is whole or not there: built in a hidden folder beside its place, moved in one step.

What is finished is journalled with its digest, so that a run that was killed goes on where it stopped; bytes that do
not hash to what the journal says are computed again. config.json comes last: without it nothing takes a folder for a
model. Knows no arithmetic and no format."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Final

from samebits.model.huggingface import CONFIG
from samebits.model.json_file import to_json
from samebits.post.layout import Layout, Region
from samebits.records.durable import make_directory, only_writer, put, put_in_one_move, sync_directory
from samebits.records.new_place import refuse_if_taken

MANIFEST: Final = "samebits.json"
CARD: Final = "README.md"
SCHEMA: Final = "samebits.post/1"
# In the hidden folder alone: what is being built, and what of it is finished.
PLAN: Final = "plan.json"
JOURNAL: Final = "journal.jsonl"
Facts = Mapping[str, Any]
READ_AT_ONCE: Final = 2**20
# Bytes of a disk that a model must leave free.
SPARE: Final = 2**20


Tell = Callable[[int], None]
"""Called with how many bytes more of the result are there."""


def silent(_: int) -> None:
    """Tells nobody."""


class NewFolder:
    """A folder under construction. `write` the regions of its layout, `put` its small files, then `finish`."""

    def __init__(self, path: Path, hidden: Path, layout: Layout) -> None:
        self.path = path
        self.hidden = hidden
        self.layout = layout
        self.finished: dict[str, dict[str, Any]] = {}
        """Facts of each finished region, its digest among them."""
        self._handles: dict[str, int] = {}
        self._journal = -1
        # Regions may be written by several threads, each its own.
        self._one = Lock()

    def missing(self) -> list[str]:
        """Regions that are still to be written, in the layout's order."""
        return [name for name in self.layout.regions if name not in self.finished]

    @contextmanager
    def writing(self, name: str) -> Iterator[RegionWriter]:
        """Writes one region from its beginning to its end; finished when the block ends without an error."""
        region = self.layout.regions[name]
        writer = RegionWriter(self._handles[region.file], region, self.hidden / region.file)
        yield writer
        if writer.at != region.start + region.size:
            raise RuntimeError(f"{name}: {writer.at - region.start} of {region.size} bytes were written")
        facts = {"sha256": writer.digest(), **writer.facts}
        with self._one:
            self.finished[name] = facts
            _write_all(self._journal, (json.dumps({"name": name, **facts}) + "\n").encode(), self.hidden / JOURNAL)

    def put(self, name: str, data: bytes) -> None:
        """A small file, onto the disk."""
        make_directory((self.hidden / name).parent)
        put(self.hidden / name, data)

    def open(self, plan: bytes) -> None:
        """Makes the files, or takes up those of a run with the same plan."""
        # A run that was killed just before the folder took its name left one; from here on this is no model again.
        (self.hidden / CONFIG).unlink(missing_ok=True)
        if (self.hidden / PLAN).is_file() and (self.hidden / PLAN).read_bytes() == plan:
            self._recover()
        else:
            for old in self.hidden.iterdir():
                shutil.rmtree(old) if old.is_dir() else old.unlink()
            self._refuse_if_full()
        for name, head in self.layout.heads.items():
            handle = os.open(self.hidden / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            self._handles[name] = handle
            _write_all(handle, head, self.hidden / name, 0)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._journal = os.open(self.hidden / JOURNAL, flags, 0o666)
        put_in_one_move(self.hidden / PLAN, plan)

    def _refuse_if_full(self) -> None:
        needed, there = sum(self.layout.sizes.values()), shutil.disk_usage(self.hidden).free
        if needed + SPARE > there:
            raise ValueError(f"{self.path}: needs {needed} bytes; allowed: at most {there - SPARE} on this disk")

    def _recover(self) -> None:
        """What the journal names and the files still hold. A line that was cut short by a kill is no line."""
        journal = self.hidden / JOURNAL
        lines = journal.read_bytes().split(b"\n")[:-1] if journal.is_file() else []
        for line in lines:
            facts = _line(line)
            name = facts.pop("name", None)
            region = self.layout.regions.get(name) if isinstance(name, str) else None
            if region is not None and _digest(self.hidden / region.file, region) == facts.get("sha256"):
                self.finished[str(name)] = facts
        put_in_one_move(
            journal, b"".join(json.dumps({"name": n, **f}).encode() + b"\n" for n, f in self.finished.items())
        )

    def finish(self, config: Facts | None, facts: Facts, card: Callable[[Facts], str]) -> None:
        """The manifest, the card and config.json; all on the disk, then the folder takes its name."""
        for name, data in self.layout.small.items():
            self.put(name, data)
        files = {}
        for name, handle in self._handles.items():
            os.fsync(handle)
            size = self.layout.sizes[name]
            files[name] = {"bytes": size, "sha256": _digest(self.hidden / name, Region(file=name, start=0, size=size))}
        manifest = {"schema": SCHEMA, **facts, "files": files, "tensors": dict(sorted(self.finished.items()))}
        self.put(CARD, card(manifest).encode())
        self.put(MANIFEST, to_json(manifest))
        for name in (PLAN, JOURNAL):
            (self.hidden / name).unlink()
        if config is not None:
            put_in_one_move(self.hidden / CONFIG, to_json(dict(config)))
        sync_directory(self.hidden)
        os.rename(self.hidden, self.path)
        sync_directory(self.path.parent)

    def close(self) -> None:
        for handle in (*self._handles.values(), *([self._journal] if self._journal >= 0 else [])):
            os.close(handle)


class RegionWriter:
    """One region's bytes, in order. `facts` go into the journal and the manifest beside their digest."""

    def __init__(self, handle: int, region: Region, path: Path) -> None:
        self.at = region.start
        self.facts: dict[str, Any] = {}
        self._handle, self._end, self._path = handle, region.start + region.size, path
        self._hash = hashlib.sha256()

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B")
        if self.at + len(view) > self._end:
            raise RuntimeError(f"{self._path}: {self.at + len(view) - self._end} bytes too many")
        self._hash.update(view)
        _write_all(self._handle, view, self._path, self.at)
        self.at += len(view)

    def digest(self) -> str:
        return self._hash.hexdigest()


@contextmanager
def new_folder(path: Path, plan: Facts, layout: Layout) -> Iterator[NewFolder]:
    """Builds `path`. After an error or a kill the hidden folder stays, and the same plan goes on with it."""
    refuse_if_taken(path)
    make_directory(path.absolute().parent)
    hidden = hidden_folder(path)
    hidden.mkdir(exist_ok=True)
    with only_writer(hidden) as alone:
        if not alone:
            raise ValueError(f"{path}: another process is writing it; allowed: one at a time")
        building = NewFolder(path.absolute(), hidden, layout)
        try:
            building.open(to_json({**plan, "layout": _identity(layout)}))
            yield building
        finally:
            building.close()


def hidden_folder(path: Path) -> Path:
    return path.absolute().parent / f".{path.absolute().name}.part"


def _identity(layout: Layout) -> str:
    """One plan, one layout: a run with other shards starts anew."""
    whole = hashlib.sha256()
    for name, head in layout.heads.items():
        whole.update(f"{name} {len(head)} ".encode() + head)
    whole.update(repr(list(layout.regions.items())).encode())
    return whole.hexdigest()


def _line(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _digest(file: Path, region: Region) -> str:
    whole, left = hashlib.sha256(), region.size
    if not file.is_file():
        return ""
    with file.open("rb") as opened:
        opened.seek(region.start)
        while left and (data := opened.read(min(left, READ_AT_ONCE))):
            whole.update(data)
            left -= len(data)
    return whole.hexdigest() if left == 0 else ""


def _write_all(handle: int, data: bytes | memoryview, path: Path, at: int | None = None) -> None:
    rest = memoryview(data)
    try:
        while rest:
            done = os.write(handle, rest) if at is None else os.pwrite(handle, rest, at)
            at = None if at is None else at + done
            rest = rest[done:]
    except OSError as error:
        error.filename = str(path)
        raise
