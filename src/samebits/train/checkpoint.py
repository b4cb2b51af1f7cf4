"""Checkpoints that survive a kill at any moment: a directory a step, committed by a marker that is written last.

Knows neither model nor optimizer, only named tensors and a plain state. Nothing is ever written over: a step is whole
and marked, or it is not a checkpoint. Equal tensors and state give equal bytes in every file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from samebits.records.durable import PART, make_directory, only_writer, put, put_in_one_move, reason, sync_directory
from samebits.train.manifest import (
    FILES,
    LATEST,
    MANIFEST,
    MARKER,
    MOST_BYTES,
    OPTIMIZER,
    STATE,
    WEIGHTS,
    WHOLE,
    CheckpointError,
    DamagedError,
    Entry,
    Manifest,
    check_names,
    check_plain,
    committed_manifest,
    contents,
    decoded_json,
    digest_of,
    encoded_json,
    hash_here,
    name_of,
    verified,
)

MOST_STEPS: Final = 99_999_999
LEAST_KEPT: Final = 2
_STEP: Final = re.compile(r"step-([0-9]{8})")
DTYPES: Final = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """What one step wrote, bit for bit; tensors on the CPU."""

    step: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]
    digest: str
    skipped: tuple[str, ...]
    """A line for each newer step that is damaged or not committed, and for a `latest` that cannot be right."""


def write(
    folder: Path,
    step: int,
    *,
    weights: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
    keep: int | None = None,
) -> Path:
    """Commits a step and returns its directory. On return all of it is on the disk; an error says what is.

    Leftovers of writers that were cut short are swept first. A damaged directory of the same step is moved aside, a
    whole one refused. `keep`: how many checkpoints up to this step stay; the rest go once this one is committed."""
    _check_arguments(step, keep)
    kept = {WEIGHTS: _kept("weights", weights), OPTIMIZER: _kept("optimizer", optimizer)}
    plain = _plain(dict(state))
    directory = folder / name_of(step)
    try:
        make_directory(folder)
        with only_writer(folder) as alone:
            if not alone:
                raise CheckpointError(f"{folder}: another writer is at work; allowed: one at a time")
            _sweep(folder)
            _make_component(directory)
            earlier = committed(folder)
            _commit(directory, step, kept, plain)
            _tidy(folder, step, earlier, keep)
    except OSError as error:
        message = f"{directory}: not written: {reason(error)}; what was committed before is as it was"
        raise CheckpointError(message) from error
    return directory


def committed(folder: Path) -> list[int]:
    """Steps whose marker confirms their manifest, ascending. Their files are judged when they are read."""
    found = []
    for step in _present(folder):
        try:
            committed_manifest(folder / name_of(step))
        except DamagedError:
            continue
        found.append(step)
    return found


def digest(path: Path) -> str:
    """The hash of a step directory's manifest: equal where step and every byte of every file are equal."""
    return committed_manifest(path).digest


def read(folder: Path, step: int | None = None) -> Checkpoint:
    """A checkpoint whose sizes and hashes hold; without a step, the newest one, newer damage named in `skipped`."""
    if step is not None:
        _check_arguments(step, None)
        return _load(folder / name_of(step), ())
    while True:
        # Before the steps are listed: a writer may move it on, but never ahead of a step that is not there.
        named, line = _latest(folder)
        present = _present(folder)
        if named > max(present, default=-1):
            line = f"{folder / LATEST}: names {name_of(named)}, which is not there"
        skipped = [line] if line else []
        marked = _marked(folder, present)
        for newest in reversed(present):
            try:
                return _load(folder / name_of(newest), tuple(skipped))
            except DamagedError as error:
                if newest in marked and not _marked(folder, [newest]):
                    break  # A writer removed it meanwhile, as it may once two newer ones are there.
                skipped.append(str(error))
        else:
            raise CheckpointError("; ".join([f"{folder}: no checkpoint that can be read", *skipped]))


def _load(directory: Path, skipped: tuple[str, ...]) -> Checkpoint:
    manifest = committed_manifest(directory)
    check_names(directory)
    state = decoded_json(verified(directory, manifest, STATE), f"{directory}: {STATE}")
    tensors = {}
    for name in (WEIGHTS, OPTIMIZER):
        data = verified(directory, manifest, name)
        try:
            tensors[name] = safetensors.torch.load(data)
        except (SafetensorError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise DamagedError(f"{directory}: {name} holds no tensors: {error}") from error
    return Checkpoint(
        step=manifest.step,
        weights=tensors[WEIGHTS],
        optimizer=tensors[OPTIMIZER],
        state=state,
        digest=manifest.digest,
        skipped=skipped,
    )


def _check_arguments(step: int, keep: int | None) -> None:
    if type(step) is not int or not 0 <= step <= MOST_STEPS:
        raise CheckpointError(f"step is {step!r}; allowed: 0 to {MOST_STEPS}")
    if keep is not None and (type(keep) is not int or keep < LEAST_KEPT):
        raise CheckpointError(f"keep is {keep!r}; allowed: None or at least {LEAST_KEPT}")


def _kept(what: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by name, those that can be kept; nothing is copied yet."""
    for name, tensor in tensors.items():
        if type(name) is not str or name == "__metadata__":
            raise CheckpointError(f"{what} has name {name!r}; allowed: text other than '__metadata__'")
        if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided or tensor.is_meta:
            raise CheckpointError(f"{what}: {name} is a {type(tensor).__name__}; allowed: dense tensors with memory")
        if tensor.dtype not in DTYPES:
            allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            raise CheckpointError(f"{what}: {name} is {str(tensor.dtype).removeprefix('torch.')}; allowed: {allowed}")
    return {name: tensors[name] for name in sorted(tensors)}


def _plain(state: dict[str, Any]) -> bytes:
    check_plain(state, "state")
    data = encoded_json(state)
    if len(data) > MOST_BYTES[STATE]:
        raise CheckpointError(f"state has {len(data)} bytes as JSON; allowed: at most {MOST_BYTES[STATE]}")
    return data


def _tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Dense on the CPU, each with memory of its own: the bytes are the same wherever and however they were held."""
    held: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        dense = tensor.detach().cpu().contiguous()
        place = dense.untyped_storage().data_ptr()
        held[name] = dense.clone() if place in storages else dense
        storages.add(place)
    return safetensors.torch.save(held)


def _commit(directory: Path, step: int, kept: Mapping[str, Mapping[str, Tensor]], plain: bytes) -> None:
    """Files, manifest, the directory itself, and when all of it is on the disk, the marker. Or nothing at all."""
    directory.mkdir()
    try:
        name, entries = hash_here(), {}
        for file in FILES:
            data = plain if file == STATE else _tensor_bytes(kept[file])
            put(directory / file, data)
            entries[file] = Entry(len(data), digest_of(data, name))
            del data
        manifest = Manifest(step, name, entries)
        put(directory / MANIFEST, manifest.encoded())
        sync_directory(directory)
        sync_directory(directory.parent)
        put_in_one_move(directory / MARKER, f"{manifest.digest}\n".encode("ascii"))
    except BaseException:
        _remove(directory)
        raise


def _tidy(folder: Path, step: int, earlier: list[int], keep: int | None) -> None:
    """Names the newest, then removes the oldest until `keep` are left up to this step; later ones are not touched."""
    try:
        put_in_one_move(folder / LATEST, f"{name_of(max([*earlier, step]))}\n".encode("ascii"))
        if keep is not None:
            for old in [other for other in earlier if other < step][: -(keep - 1)]:
                _remove(folder / name_of(old))
    except OSError as error:
        raise CheckpointError(f"{folder}: step {step} is committed, but not tidied: {reason(error)}") from error


def _sweep(folder: Path) -> None:
    """Removes what writers that were cut short left behind, and nothing that they did not write."""
    (folder / f"{LATEST}{PART}").unlink(missing_ok=True)
    for step in _present(folder):
        directory = folder / name_of(step)
        if not directory.is_symlink() and directory.is_dir() and not os.path.lexists(directory / MARKER):
            _remove(directory)


def _make_component(directory: Path) -> None:
    """Refuses a step that is there and whole; moves a damaged one aside, so that its run can go on."""
    if not os.path.lexists(directory):
        return
    try:
        manifest = committed_manifest(directory)
        check_names(directory)
        for name in FILES:
            verified(directory, manifest, name)
    except DamagedError:
        free = (directory.with_name(f"{directory.name}.damaged-{number}") for number in count(1))
        os.rename(directory, next(path for path in free if not os.path.lexists(path)))
        return
    raise CheckpointError(f"{directory}: is committed already, as {manifest.digest}; allowed: a step that is not there")


def _remove(directory: Path) -> None:
    """The marker first, so that no moment shows a committed step with files missing. A foreign file keeps them all."""
    if not directory.is_dir() or not set(os.listdir(directory)) <= WHOLE | {f"{MARKER}{PART}"}:
        return
    (directory / MARKER).unlink(missing_ok=True)
    sync_directory(directory)
    for file in os.listdir(directory):
        (directory / file).unlink()
    directory.rmdir()


def _present(folder: Path) -> list[int]:
    """Every step that has a directory, committed or not, ascending."""
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted(int(match[1]) for match in map(_STEP.fullmatch, names) if match)


def _marked(folder: Path, steps: list[int]) -> set[int]:
    return {step for step in steps if os.path.lexists(folder / name_of(step) / MARKER)}


def _latest(folder: Path) -> tuple[int, str]:
    """The step that `latest` names, -1 if none, and what is wrong with it.

    That it names an older step is no fault: a kill came between marker and name."""
    path = folder / LATEST
    if not os.path.lexists(path):
        return -1, ""
    try:
        text = contents(folder, LATEST).decode("ascii", "replace")
    except DamagedError as error:
        return -1, str(error)
    match = _STEP.fullmatch(text[:-1]) if text.endswith("\n") else None
    return (int(match[1]), "") if match else (-1, f"{path}: holds {text[:80]!r}; allowed: the name of a step")
