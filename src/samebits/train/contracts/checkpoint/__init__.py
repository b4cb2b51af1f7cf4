"""Runs of the trainer that are repeated, cut short by a checkpoint and resumed, as the contract of checkpoints asks.

Rows of text are sequences, two of which make an update. Folders are temporary and gone when a call returns."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from samebits.model.contracts.small_model import make_weights
from samebits.train import checkpoint
from samebits.train.checkpoint import Checkpoint
from samebits.train.contracts.small_run import config_of, make_texts, trainer_of
from samebits.train.trainer import OURS, Parts, Trainer

BATCH = 2
RATE = 2.0**-7
AT = 1
"""The step after which a run is cut short."""
Load = Callable[[Trainer, Path], None]


def begun(text: Tensor, counts: Tensor, weights: Tensor, steps: int, seed: int = 42, parts: Parts = OURS) -> Trainer:
    """A run before its first step."""
    config = config_of(BATCH, BATCH, RATE, steps, width=text.shape[1] - 1, seed=seed)
    return trainer_of(config, text, counts, weights, parts)


def flat(trainer: Trainer, losses: list[float]) -> Tensor:
    """float64: the losses, the steps that the optimizer counted, every weight and both its moments, end to end."""
    (counted,) = set(trainer.counted().values())
    tensors = [*trainer.weights.values(), *trainer.moments().values()]
    numbers = torch.tensor([*losses, counted], dtype=torch.float64)
    return torch.cat([numbers, *(each.reshape(-1).double() for each in tensors)])


def state_after(
    text: Tensor, counts: Tensor, weights: Tensor, steps: Tensor, seed: Tensor, *, parts: Parts = OURS
) -> Tensor:
    """The losses of a whole run and what it came to."""
    trainer = begun(text, counts, weights, int(steps), int(seed), parts)
    return flat(trainer, [trainer.step().loss for _ in range(int(steps))])


def _restored(trainer: Trainer, folder: Path) -> None:
    trainer.restore(checkpoint.read(folder))


def resumed(
    text: Tensor, counts: Tensor, weights: Tensor, steps: Tensor, seed: Tensor, *, load: Load = _restored
) -> Tensor:
    """The same of a run that was kept in a folder after its first step and went on from there in another trainer."""
    with TemporaryDirectory() as folder:
        first = begun(text, counts, weights, int(steps), int(seed))
        losses = [first.step().loss for _ in range(AT)]
        write(first, Path(folder))
        second = begun(text, counts, torch.zeros_like(weights), int(steps), int(seed))
        load(second, Path(folder))
        return flat(second, losses + [second.step().loss for _ in range(int(steps) - AT)])


def write(trainer: Trainer, folder: Path) -> Path:
    """A checkpoint of this moment."""
    kept = trainer.state()
    assert kept is not None  # one rank keeps everything
    return checkpoint.write(folder, trainer.done, **kept)


Keep = Callable[[Trainer, Path], Path]


def held(layers: Tensor, seed: Tensor, *, keep: Keep = write) -> Tensor:
    """What the checkpoint of a model of so many layers holds: moments, their numbers, those that are not 0, weights."""
    texts = make_texts(BATCH, 4, int(seed))
    weights = make_weights(int(layers), "normal", "float32", int(seed))
    with TemporaryDirectory() as folder:
        trainer = begun(texts["text"], texts["counts"], weights, 2)
        trainer.step()
        keep(trainer, Path(folder))
        found = checkpoint.read(Path(folder))
    moments = found.optimizer.values()
    alive = sum(bool(each.count_nonzero()) for each in moments)
    return torch.tensor([len(moments), sum(each.numel() for each in moments), alive, len(found.weights)])


def position(steps: Tensor, sequences: Tensor, batch: Tensor, *, moved: int = 0) -> Tensor:
    """(rows, 2): epoch and sequence at which a run goes on that was kept after so many steps.

    `moved`: so many sequences are added to what the checkpoint says."""
    cuts = zip(steps.tolist(), sequences.tolist(), batch.tolist(), strict=True)
    return torch.tensor([_position(*cut, moved) for cut in cuts])


def _position(steps: int, sequences: int, batch: int, moved: int) -> tuple[int, int]:
    texts = make_texts(1, 1, 1)
    text, counts = texts["text"].expand(sequences, 2), texts["counts"].expand(sequences)
    weights = make_weights(1, "normal", "float32", 1)
    config = config_of(batch, batch, RATE, steps + 1, width=1)
    before, after = (trainer_of(config, text, counts, weights) for _ in range(2))
    before.done = steps
    after.restore(_in_memory(before, moved))
    facts = after.facts()
    return facts["position.epoch"], facts["position.sequence"]


def _in_memory(trainer: Trainer, moved: int) -> Checkpoint:
    kept = trainer.state()
    assert kept is not None  # one rank keeps everything
    facts = dict(kept["state"]["facts"])
    facts["position.sequence"] += moved
    found = Checkpoint(step=trainer.done, digest="", skipped=(), **kept)
    return replace(found, state={**found.state, "facts": facts})


Resume = Callable[[Trainer, Path], None]


def _goes_on(trainer: Trainer, folder: Path) -> None:
    trainer.restore(checkpoint.read(folder))
    trainer.step()
    write(trainer, folder)


def files_after(
    text: Tensor, counts: Tensor, weights: Tensor, steps: Tensor, seed: Tensor, *, go: Resume = _goes_on
) -> Tensor:
    """(2, 32): the digest of all files of a step before and after a run went on from it and kept another."""
    with TemporaryDirectory() as folder:
        trainer = begun(text, counts, weights, AT + 1, int(seed))
        trainer.step()
        path = write(trainer, Path(folder))
        before = _digest(path)
        go(begun(text, counts, weights, AT + 1, int(seed)), Path(folder))
        return torch.tensor([list(before), list(_digest(path))])


def _digest(folder: Path) -> bytes:
    state = hashlib.sha256()
    for name, data in _files(folder):
        state.update(f"{name} {len(data)}\0".encode() + data)
    return state.digest()


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.iterdir()):
        yield path.name, path.read_bytes()
