"""Portable goldens: one file of digests that every machine must give, whatever its processor or device.

`record` makes it, `replay` compares. Groups are operators by format, the elementary functions, twenty updates, and an
engine's answers. On CUDA the float32 groups are replayed: products of 16-bit formats have another declared order there.
Knows nothing of how it is shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from samebits.native.launch_numbers import launching
from samebits.ops.arguments import BACKEND_OF_DEVICE
from samebits.parity.portable.bits import digest_of_digests
from samebits.parity.portable.drawing import GENERATOR
from samebits.parity.portable.functions import functions
from samebits.parity.portable.operators import operators
from samebits.parity.portable.whole import tokens, training
from samebits.records.shipped import shipped

SCHEMA: Final = "samebits.portable/1"
FOLDER: Final = shipped("goldens")
RECORD: Final = FOLDER / "portable.json"
TEXT: Final = FOLDER / "portable.txt"

Digests = dict[str, str]
_GROUPS: Final[dict[str, Callable[[torch.device], Digests]]] = {
    "functions float32": functions,
    "operators float32": lambda device: operators("float32", device),
    "operators bfloat16": lambda device: operators("bfloat16", device),
    "operators float16": lambda device: operators("float16", device),
    "training float32": lambda device: training("float32", device, TEXT),
    "training bfloat16": lambda device: training("bfloat16", device, TEXT),
    "tokens float32": lambda device: tokens("float32", device),
    "tokens bfloat16": lambda device: tokens("bfloat16", device),
}
GROUPS: Final = tuple(_GROUPS)


class UnreadableRecordError(ValueError):
    """There is no record to compare with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """One group, computed here and compared with the record."""

    group: str
    digest: str
    """Of all its digests."""
    recorded: str
    results: int
    differing: tuple[str, ...]
    """Results with other bits, and those that only one side has."""

    @property
    def equal(self) -> bool:
        return not self.differing


def groups_of(backend: str) -> tuple[str, ...]:
    """What a backend can replay."""
    if backend not in BACKEND_OF_DEVICE.values():
        raise ValueError(f"portable: backend is {backend!r}; allowed: {', '.join(BACKEND_OF_DEVICE.values())}")
    return GROUPS if backend == "cpu" else tuple(group for group in GROUPS if group.endswith("float32"))


def digests_of(group: str, backend: str = "cpu", instruction_set: str | None = None) -> Digests:
    """A group computed now. On the CPU the instruction set may be forced."""
    device = next(device for device, name in BACKEND_OF_DEVICE.items() if name == backend)
    forced = nullcontext() if instruction_set is None else launching(instruction_set=instruction_set)
    with forced:
        return _GROUPS[group](torch.device(device))


def replay(backend: str = "cpu", instruction_set: str | None = None, file: Path = RECORD) -> Iterator[Replayed]:
    """Every group that the backend can replay, one after another, against the record."""
    recorded = read(file)
    for group in groups_of(backend):
        yield compare(group, recorded[group], digests_of(group, backend, instruction_set))


def compare(group: str, recorded: Digests, found: Digests) -> Replayed:
    names = sorted(recorded.keys() | found.keys())
    differing = tuple(name for name in names if recorded.get(name) != found.get(name))
    return Replayed(
        group=group,
        digest=digest_of_digests(found),
        recorded=digest_of_digests(recorded),
        results=len(found),
        differing=differing,
    )


def record(file: Path = RECORD, instruction_set: str | None = None) -> dict[str, Any]:
    """Writes what this machine's CPU computes. Another machine writes the same file."""
    groups = {group: digests_of(group, instruction_set=instruction_set) for group in GROUPS}
    document = {"schema": SCHEMA, "generator": GENERATOR, "groups": groups}
    file.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    return document


def read(file: Path = RECORD) -> dict[str, Digests]:
    """The record's groups; one line where it cannot be compared with."""
    try:
        document = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UnreadableRecordError(f"portable: {file} cannot be read: {' '.join(str(error).split())}") from error
    for key, wanted in (("schema", SCHEMA), ("generator", GENERATOR)):
        found = document.get(key) if isinstance(document, dict) else None
        if found != wanted:
            raise UnreadableRecordError(f"portable: {file}: {key} is {found!r}; allowed: {wanted!r}")
    groups = document.get("groups")
    if not isinstance(groups, dict) or sorted(groups) != sorted(GROUPS):
        raise UnreadableRecordError(f"portable: {file}: its groups are not those of this version; record it anew")
    return groups
