"""What a whole checkpoint directory is: its files, their sizes and hashes, and the marker that commits them.

Knows no tensor, and writes nothing; `checkpoint` does. Whatever a directory holds, reading it ends in its bytes as they
were written or in one line that names the damage: no name leads out of it, no size or depth is believed unchecked."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

FORMAT: Final = 1
WEIGHTS: Final = "weights.safetensors"
OPTIMIZER: Final = "optimizer.safetensors"
STATE: Final = "state.json"
MANIFEST: Final = "manifest.json"
MARKER: Final = "COMMITTED"
# Beside the steps: the name of the newest.
LATEST: Final = "latest"
# What a manifest lists, no more and no less.
FILES: Final = (OPTIMIZER, STATE, WEIGHTS)
WHOLE: Final = frozenset((*FILES, MANIFEST, MARKER))
# What is read before any hash has confirmed it, or becomes many times its size once parsed.
MOST_BYTES: Final = {LATEST: 256, MARKER: 256, MANIFEST: 1 << 16, STATE: 1 << 22}
MOST_DEPTH: Final = 64
MOST_BITS: Final = 4096
PLAIN: Final = ("dict", "list", "str", "int", "float", "bool", "None")

HASHES: Final = ("blake3", "blake2b")
_DIGEST: Final = re.compile(r"(blake3|blake2b):[0-9a-f]{64}")


class CheckpointError(ValueError):
    """A checkpoint that cannot be written or read, in one line."""


class DamagedError(CheckpointError):
    """A directory that is not what its writer committed."""


def hash_here() -> str:
    """blake3, or blake2b on a machine without it. The digest says which, so that the two are never compared."""
    return "blake3" if find_spec("blake3") is not None else "blake2b"


def digest_of(data: bytes, name: str) -> str:
    """`name:` and 64 hex digits."""
    if name == "blake2b":
        return f"blake2b:{hashlib.blake2b(data, digest_size=32).hexdigest()}"
    from blake3 import blake3

    return f"blake3:{blake3(data).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One file as it was written."""

    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of one step. Equal files give equal bytes: no time, no host, keys in order."""

    step: int
    hash: str
    files: Mapping[str, Entry]

    def encoded(self) -> bytes:
        files = {name: {"digest": entry.digest, "size": entry.size} for name, entry in self.files.items()}
        return encoded_json({"files": files, "format": FORMAT, "hash": self.hash, "step": self.step})

    @property
    def digest(self) -> str:
        return digest_of(self.encoded(), self.hash)

    @classmethod
    def decoded(cls, data: bytes, where: str) -> Manifest:
        """Only what `encoded` writes: whatever else the bytes mean is refused, before a name or size of it is used."""
        document = decoded_json(data, where)
        if (form := document.get("format")) != FORMAT:
            raise DamagedError(f"{where} has format {form!r}; allowed: {FORMAT}")
        try:
            files = {name: Entry(**entry) for name, entry in document["files"].items()}
            manifest = cls(document["step"], document["hash"], files)
        except (AttributeError, KeyError, TypeError) as error:
            raise DamagedError(f"{where} is not a manifest: {error}") from error
        for name in files:
            if name not in FILES:
                raise DamagedError(f"{where} lists {name[:80]!r}; allowed: {', '.join(FILES)}")
        numbers = [manifest.step, *(entry.size for entry in files.values())]
        typed = all(type(number) is int and number >= 0 for number in numbers)
        if len(files) != len(FILES) or not typed or manifest.hash not in HASHES or manifest.encoded() != data:
            raise DamagedError(
                f"{where} is not as format {FORMAT} writes it; allowed: step, hash, size and digest of files"
            )
        return manifest


def name_of(step: int) -> str:
    return f"step-{step:08d}"


def committed_manifest(directory: Path) -> Manifest:
    """The manifest that the marker confirms. Its files are not looked at."""
    if directory.is_symlink() or not directory.is_dir():
        raise DamagedError(f"{directory}: no directory")
    if not os.path.lexists(directory / MARKER):
        raise DamagedError(f"{directory}: not committed: {MARKER} is missing")
    said = contents(directory, MARKER).decode("ascii", "replace")
    if not said.endswith("\n") or not _DIGEST.fullmatch(said[:-1]):
        raise DamagedError(f"{directory}: {MARKER} holds {said[:80]!r}; allowed: a digest")
    said = said[:-1]
    name = said.split(":")[0]
    if name == "blake3" and hash_here() != "blake3":
        # No damage: another machine can read it, so none older is taken in its place.
        raise CheckpointError(f"{directory}: its hash is blake3, whose package is not here; needed: pip install blake3")
    data = contents(directory, MANIFEST)
    if (found := digest_of(data, name)) != said:
        raise DamagedError(f"{directory}: {MANIFEST} is {found}; {MARKER} says {said}")
    manifest = Manifest.decoded(data, f"{directory}: {MANIFEST}")
    if name_of(manifest.step) != directory.name:
        raise DamagedError(f"{directory}: {MANIFEST} is that of step {manifest.step}")
    if manifest.hash != name:
        raise DamagedError(f"{directory}: {MANIFEST} names hash {manifest.hash}; {MARKER} says {name}")
    return manifest


def check_names(directory: Path) -> None:
    """Every file of a whole directory is there, and nothing else."""
    try:
        names = set(os.listdir(directory))
    except OSError as error:
        raise DamagedError(f"{directory}: cannot be listed: {error.strerror}") from error
    if missing := sorted(WHOLE - names):
        raise DamagedError(f"{directory}: {missing[0]} is missing")
    if extra := sorted(names - WHOLE):
        raise DamagedError(f"{directory}: holds {extra[0]!r}; allowed: {', '.join(sorted(WHOLE))}")


def verified(directory: Path, manifest: Manifest, name: str) -> bytes:
    """The bytes of a listed file; size and hash are those of the manifest, of the very bytes that are returned."""
    entry = manifest.files[name]
    data = contents(directory, name, size=entry.size)
    if (found := digest_of(data, manifest.hash)) != entry.digest:
        raise DamagedError(f"{directory}: {name} is {found}; {MANIFEST} says {entry.digest}")
    return data


def contents(directory: Path, name: str, size: int | None = None) -> bytes:
    """A plain file's bytes. Links and pipes are refused unopened or unread, and so is a size that is not allowed."""
    where = f"{directory}: {name}"
    try:
        handle = os.open(directory / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise DamagedError(f"{where} is not a regular file")
            if size is not None and status.st_size != size:
                raise DamagedError(f"{where} has {status.st_size} bytes; {MANIFEST} says {size}")
            if status.st_size > (most := MOST_BYTES.get(name, status.st_size)):
                raise DamagedError(f"{where} has {status.st_size} bytes; allowed: at most {most}")
            return file.read(status.st_size)
    except OSError as error:
        why = {errno.ENOENT: "is missing", errno.ELOOP: "is a link; allowed: a plain file"}
        raise DamagedError(f"{where} {why.get(error.errno or 0, f'cannot be read: {error.strerror}')}") from error


def encoded_json(document: Mapping[str, Any]) -> bytes:
    """One text for one document: keys in order, ASCII only, floats as the shortest text that gives them back."""
    return (json.dumps(document, sort_keys=True, indent=1, allow_nan=False) + "\n").encode("ascii")


def decoded_json(data: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(data.decode("ascii"), object_pairs_hook=_unique)
    except RecursionError as error:
        raise DamagedError(f"{where} is nested too deep; allowed: {MOST_DEPTH} levels") from error
    except ValueError as error:
        raise DamagedError(f"{where} is no JSON: {error}") from error
    try:
        check_plain(document, where)
    except ValueError as error:
        raise DamagedError(str(error)) from error
    if type(document) is not dict:
        raise DamagedError(f"{where} holds a {type(document).__name__}; allowed: an object")
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return found


def check_plain(value: object, where: str) -> None:
    """Whether JSON gives a value back as it is: text keys, finite numbers, lists, at most MOST_DEPTH levels."""
    # A place is its parent and its key; as text each would be as long as all keys above it.
    waiting: list[tuple[object, tuple[Any, ...], int]] = [(value, (), 0)]
    while waiting:
        value, place, depth = waiting.pop()
        if depth > MOST_DEPTH:
            raise CheckpointError(f"{where} is nested too deep; allowed: {MOST_DEPTH} levels")
        if type(value) is dict:
            if odd := [key for key in value if type(key) is not str]:
                raise CheckpointError(f"{where}{_path(place)} has key {odd[0]!r}; allowed: text")
            waiting += [(inner, (place, key), depth + 1) for key, inner in value.items()]
        elif type(value) is list:
            waiting += [(inner, (place, number), depth + 1) for number, inner in enumerate(value)]
        elif type(value) is float and not math.isfinite(value):
            raise CheckpointError(f"{where}{_path(place)} is {value}; allowed: finite numbers")
        elif type(value) is int and value.bit_length() > MOST_BITS:
            raise CheckpointError(f"{where}{_path(place)} has {value.bit_length()} bits; allowed: at most {MOST_BITS}")
        elif value is not None and type(value) not in (str, int, float, bool):
            raise CheckpointError(f"{where}{_path(place)} is a {type(value).__name__}; allowed: {', '.join(PLAIN)}")


def _path(place: tuple[Any, ...]) -> str:
    steps = []
    while place:
        place, key = place
        steps.append(f"[{key}]" if type(key) is int else f".{key[:40]}")
    return "".join(reversed(steps))
