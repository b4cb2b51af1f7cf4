"""Configurations written as text, with numbers that are no defaults, and read back as a run reads them.

A key that nothing reads can be put beside the others, in the text or as a setting on top of it. Knows no trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Final, get_type_hints

import torch
from torch import Tensor

from samebits.train import configuration_file, distill_configuration
from samebits.train.configuration import TrainConfig
from samebits.train.distill_configuration import DistillConfig

NUMBERS: Final = ("lr", "min_lr_ratio", "beta1", "beta2", "weight_decay", "norm_weight_decay", "eps")
"""Keys of the optimizer's section, a column of the table each."""
KINDS: Final[Mapping[str, type[TrainConfig]]] = {"train": TrainConfig, "distill": DistillConfig}
Reader = Callable[[str, Sequence[str]], TrainConfig]
READERS: Final[Mapping[str, Reader]] = {
    "train": configuration_file.read_text,
    "distill": distill_configuration.read_text,
}


def keys_of(kind: type, within: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every section of a configuration by its path, "" the whole, with the keys that are read there."""
    hints: dict[str, Any] = get_type_hints(kind)
    yield within, tuple(hints)
    for name, hint in hints.items():
        if isinstance(hint, type) and is_dataclass(hint):
            yield from keys_of(hint, f"{within}.{name}" if within else name)


def _document(kind: str, row: Sequence[float]) -> dict[str, Any]:
    """All sections that the kind has, each with a key at least."""
    document: dict[str, Any] = {
        "model": {"preset": "tiny", "overrides": {"num_hidden_layers": 2}},
        "data": {"max_length": 48},
        "optimizer": dict(zip(NUMBERS, row, strict=True)),
        "training": {"seed": 7},
        "monitoring": {"logging_steps": 2},
    }
    return document if kind == "train" else {**document, "distillation": {"teacher_model_name_or_path": "tiny@0"}}


def _lines(document: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}:"
            yield from _lines(value, f"{indent}  ")
        else:
            yield f"{indent}{name}: {value!r}" if isinstance(value, float) else f"{indent}{name}: {value}"


def _with_key(document: dict[str, Any], key: str) -> None:
    *sections, last = key.split(".")
    for section in sections:
        document = document[section]
    document[last] = 1


def read_back(
    table: Tensor, *, kind: str = "train", more: str = "", on_top: bool = False, readers: Mapping[str, Reader] = READERS
) -> Tensor:
    """(rows, numbers) float64: of every row the optimizer's numbers as they are read from a configuration.

    `more`: the path of a key that is written as well; with `on_top`, as a setting of the command line."""
    found = []
    for row in table.double().tolist():
        document = _document(kind, row)
        if more and not on_top:
            _with_key(document, more)
        settings = [f"{more}=1"] if more and on_top else []
        config = readers[kind]("\n".join(_lines(document)) + "\n", settings)
        found.append([getattr(config.optimizer, name) for name in NUMBERS])
    return torch.tensor(found, dtype=torch.float64)
