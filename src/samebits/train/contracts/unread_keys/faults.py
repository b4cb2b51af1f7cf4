"""Planted faults of readers: keys that nothing reads are ignored, everywhere or in one place; a key is not read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from samebits.contracts.strict_yaml import Located, parse
from samebits.train.configuration import TrainConfig
from samebits.train.configuration_file import configuration
from samebits.train.contracts.unread_keys import KINDS, READERS, Reader, keys_of, read_back

Keeps = Callable[[str, str], bool]
"""(section, key): whether a reader looks at it."""


def _pruned(document: Located, keeps: Keeps, within: str = "") -> Located:
    """A document without the keys that are not kept."""
    found = Located()
    for name, value in document.items():
        if keeps(within, name):
            inner = f"{within}.{name}" if within else name
            found[name] = _pruned(value, keeps, inner) if isinstance(value, Located) else value
            found.lines[name] = document.lines[name]
    return found


def _read(kind: type[TrainConfig], keeps: Keeps, text: str, settings: Sequence[str]) -> TrainConfig:
    path = Path("configuration")
    return configuration(kind, _pruned(parse(text.encode(), path), keeps), path, settings)


def _readers(keeps: Callable[[type[TrainConfig]], Keeps]) -> Mapping[str, Reader]:
    return {name: partial(_read, kind, keeps(kind)) for name, kind in KINDS.items()}


def _only_known(kind: type[TrainConfig]) -> Keeps:
    known = dict(keys_of(kind))
    return lambda section, key: key in known[section]


def _only_known_overrides(kind: type[TrainConfig]) -> Keeps:
    known = dict(keys_of(kind))
    return lambda section, key: section != "model.overrides" or key in known[section]


def a_key_is_ignored(table: Tensor, **options: Any) -> Tensor:
    """The text is read key by key, and what is left over is nobody's."""
    return read_back(table, **options, readers=_readers(_only_known))


def an_override_is_ignored(table: Tensor, **options: Any) -> Tensor:
    """The same, in the innermost section alone."""
    return read_back(table, **options, readers=_readers(_only_known_overrides))


def _without_settings(reader: Reader, text: str, settings: Sequence[str]) -> TrainConfig:
    return reader(text, [])


def a_setting_is_ignored(table: Tensor, **options: Any) -> Tensor:
    """What is set on top of the text is not looked at."""
    readers = {name: partial(_without_settings, reader) for name, reader in READERS.items()}
    return read_back(table, **options, readers=readers)


def eps_is_not_read(table: Tensor, **options: Any) -> Tensor:
    """A key that is known and whose number is that of the default."""
    readers = _readers(lambda kind: lambda section, key: (section, key) != ("optimizer", "eps"))
    return read_back(table, **options, readers=readers)
