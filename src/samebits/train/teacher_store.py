"""A teacher's logits on disk: shards that are hashed, found by the content of their sequences, and whole or not there.

Knows no teacher and no step. A shard is committed by a small file beside it that is written last, with its hash and
the keys of its sequences; a kill leaves whole shards, and what is missing is written when the store is filled again.
Equal logits of equal sequences, shard by shard, are equal bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from samebits.records.durable import PART, make_directory, put_in_one_move
from samebits.records.plain_file import read_plain
from samebits.train.contracts.teacher_logits import Form
from samebits.train.manifest import CheckpointError, decoded_json, digest_of, encoded_json, hash_here

STORE: Final = "teacher_logits.json"
FORMAT: Final = 1
# What one shard may take, but for a single sequence that is larger, and how many sequences: a kill loses no more.
SHARD_BYTES: Final = 2**26
SHARD_SEQUENCES: Final = 64
MOST_MARKER_BYTES: Final = 2**24

Tokens = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """A committed file of logits."""

    name: str
    size: int
    digest: str
    keys: tuple[str, ...]
    rows: tuple[int, ...]
    """Of each sequence, in the order of the keys."""
    error: float
    """The most by which a probability is off."""


def key_of(inputs: Tokens) -> str:
    """What a sequence is found by: its tokens, those that fill it up included."""
    return hashlib.blake2b(inputs.astype("<i8").tobytes(), digest_size=16).hexdigest()


class TeacherStore:
    """The logits of one teacher in one form, in one folder."""

    def __init__(self, folder: Path, teacher: str, form: Form) -> None:
        """Opens a folder, or says what it holds instead. `teacher`: the digest of its config and weights."""
        self.folder, self.form = folder, form
        self.facts = {"format": FORMAT, "teacher": teacher, **form.facts()}
        if (folder / STORE).exists():
            self._check(decoded_json(read_plain(folder / STORE, MOST_MARKER_BYTES), str(folder / STORE)))
        self._opened: dict[str, Any] = {}
        self.look()

    def look(self) -> None:
        """Lists what is there."""
        self.damaged: list[str] = []
        self._hold(self._committed())

    def _hold(self, shards: Iterable[Shard]) -> None:
        self.shards = {shard.name: shard for shard in shards}
        self._places = {
            key: (shard, start, rows)
            for shard in self.shards.values()
            for key, start, rows in zip(shard.keys, _starts(shard.rows), shard.rows, strict=True)
        }

    def verify(self) -> None:
        """Holds every shard against its hash; those that are not what was written are held no longer."""
        whole = []
        for shard in self.shards.values():
            try:
                self._open(shard)
                whole.append(shard)
            except ValueError as error:
                self.damaged.append(str(error))
        self._hold(whole)

    def _check(self, found: dict[str, Any]) -> None:
        for key in [*self.facts, *sorted(found.keys() - self.facts.keys())]:
            if found.get(key) != self.facts.get(key):
                was, now = found.get(key), self.facts.get(key)
                raise ValueError(
                    f"{self.folder}: holds teacher logits with {key} {was!r}, the run has {now!r}; allowed: the same,"
                    " or another folder"
                )

    def _committed(self) -> Iterator[Shard]:
        """Every shard whose marker and size are as they were written; the others are named, and written again."""
        for marker in sorted(self.folder.glob("logits-*.json")) if self.folder.is_dir() else ():
            name = f"{marker.stem}.safetensors"
            try:
                shard = _shard(name, decoded_json(read_plain(marker, MOST_MARKER_BYTES), str(marker)))
                size = (self.folder / name).stat().st_size
                if size != shard.size:
                    raise CheckpointError(f"{self.folder / name}: has {size} bytes; {marker.name} says {shard.size}")
            except (ValueError, OSError) as error:
                self.damaged.append(str(error))
                continue
            yield shard

    @property
    def error(self) -> float:
        """The most by which any probability is off."""
        return max((shard.error for shard in self.shards.values()), default=0.0)

    @property
    def size(self) -> int:
        return sum(shard.size for shard in self.shards.values())

    def digest(self) -> str:
        """Of all that is held."""
        held = {shard.name: shard.digest for shard in self.shards.values()}
        return digest_of(encoded_json({"store": self.facts, "shards": dict(sorted(held.items()))}), hash_here())

    def missing(self, sequences: Iterable[Tokens]) -> list[list[Tokens]]:
        """The sequences that are not held, in groups that become a shard each."""
        groups: list[list[Tokens]] = []
        size, seen = 0, set[str]()
        for inputs in sequences:
            key = key_of(inputs)
            if key in seen:
                continue
            seen.add(key)
            size += len(inputs) * self.form.row_bytes
            if not groups or size > SHARD_BYTES or len(groups[-1]) == SHARD_SEQUENCES:
                groups.append([])
                size = len(inputs) * self.form.row_bytes
            groups[-1].append(inputs)
        # Cut into groups before what is held is left out: after a kill the rest has the groups that it had.
        left = [[inputs for inputs in group if key_of(inputs) not in self._places] for group in groups]
        return [group for group in left if group]

    def add(
        self, sequences: Sequence[Tokens], logits: Callable[[Sequence[Tokens]], Tensor], tolerance: float, at_once: int
    ) -> None:
        """Writes one shard, `at_once` sequences in a pass of the teacher. Refused, and nothing written, where a
        probability would be off by more than tolerance."""
        parts, error = [], 0.0
        for start in range(0, len(sequences), at_once):
            live_RV = logits(sequences[start : start + at_once]).cpu()
            if not bool(live_RV.isfinite().all()):
                raise ValueError(f"{self.folder}: the teacher's logits are not finite; allowed: finite")
            parts.append(self.form.kept(live_RV))
            error = max(error, self.form.error(live_RV, parts[-1]))
            if error > tolerance:
                wanted = int((self.form.probabilities(live_RV) > tolerance).sum(-1).max())
                raise ValueError(_too_far(self.form, error, tolerance, wanted))
        together = {name: torch.cat([part[name] for part in parts]).contiguous() for name in sorted(parts[0])}
        data = safetensors.torch.save(together)
        keys = [key_of(inputs) for inputs in sequences]
        name = f"logits-{hashlib.blake2b(''.join(keys).encode(), digest_size=8).hexdigest()}"
        facts = {
            "size": len(data),
            "digest": digest_of(data, hash_here()),
            "keys": keys,
            "rows": [len(inputs) for inputs in sequences],
            "error": error,
        }
        make_directory(self.folder)
        if not (self.folder / STORE).exists():
            put_in_one_move(self.folder / STORE, encoded_json(self.facts))
        put_in_one_move(self.folder / f"{name}.safetensors", data)
        put_in_one_move(self.folder / f"{name}.json", encoded_json(facts))

    def logits(self, inputs: Tokens) -> Tensor:
        """float32 (R, V) of a sequence, by its content."""
        found = self._places.get(key_of(inputs))
        if found is None:
            raise ValueError(f"{self.folder}: holds no logits of the sequence that begins with {inputs[:8].tolist()}")
        shard, start, rows = found
        opened = self._open(shard)
        return self.form.restored({name: opened.get_slice(name)[start : start + rows] for name in opened.keys()})  # noqa: SIM118

    def _open(self, shard: Shard) -> Any:
        """A shard whose bytes were held against their hash once, then read where they are."""
        if shard.name not in self._opened:
            path = self.folder / shard.name
            data = read_plain(path, shard.size)
            found = digest_of(data, shard.digest.partition(":")[0])
            if found != shard.digest:
                raise ValueError(
                    f"{path}: is {found}, was written as {shard.digest}; remove it to have it computed again"
                )
            try:
                self._opened[shard.name] = safe_open(path, "pt")
            except (SafetensorError, OSError) as error:
                raise ValueError(f"{path}: holds no tensors: {error}") from error
        return self._opened[shard.name]


def _too_far(form: Form, error: float, tolerance: float, wanted: int) -> str:
    kept = f"top_k {form.top_k} in {form.dtype}" if form.top_k is not None else form.dtype
    more = f"; top_k {wanted} would do for these rows" if form.top_k is not None and wanted > form.top_k else ""
    allowed = f"at most {tolerance:g}, or distillation.logits_tolerance"
    return f"distillation.teacher_logits: {kept} puts a probability off by {error:.3g}; allowed: {allowed}{more}"


def _starts(rows: Sequence[int]) -> list[int]:
    return list(accumulate(rows, initial=0))[:-1]


def _shard(name: str, facts: dict[str, Any]) -> Shard:
    """What a marker says, if it says what a writer wrote."""
    wanted = {"size": int, "digest": str, "keys": list, "rows": list, "error": float}
    if {key: type(value) for key, value in facts.items()} != wanted or len(facts["keys"]) != len(facts["rows"]):
        raise CheckpointError(f"{name}: its marker holds {', '.join(sorted(facts))}; allowed: {', '.join(wanted)}")
    keys, rows = tuple(facts["keys"]), tuple(facts["rows"])
    return Shard(name=name, size=facts["size"], digest=facts["digest"], keys=keys, rows=rows, error=facts["error"])


def is_store(folder: Path) -> bool:
    """Whether a folder may be filled: new, empty, or a store."""
    return not folder.exists() or (folder.is_dir() and ((folder / STORE).is_file() or not any(folder.iterdir())))


def sweep(folder: Path) -> None:
    """Removes files that a writer which was cut short did not finish."""
    for part in folder.glob(f"*{PART}") if folder.is_dir() else ():
        part.unlink(missing_ok=True)
