"""Documents as tokens in memory, cut into sequences of input and target. Knows neither a batch nor an order.

The default source is the Python standard library, so that a run needs no download."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from samebits.model.batch import ALIGNMENT, IGNORED
from samebits.model.loading import load_tokenizer
from samebits.model.tokenizer import Tokenizer
from samebits.records.packaged_models import KNOWN
from samebits.records.packages import needed
from samebits.train.configuration import IN_BYTES, DataSection

# Bytes as tokens, and the one that ends a document.
BYTES: Final = 256
# Of the standard library: what distributions leave out or ship apart, and what they patch for their own folders.
LEFT_OUT: Final = frozenset(
    {
        "__pycache__",
        "test",
        "tests",
        "idle_test",
        "idlelib",
        "tkinter",
        "turtle",
        "turtledemo",
        "lib2to3",
        "ensurepip",
        "venv",
        "pydoc_data",
        "argparse",
        "ctypes",
        "distutils",
        "gettext",
        "locale",
        "pydoc",
        "site",
        "sysconfig",
        "webbrowser",
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """Tokens of all documents end to end, and where each sequence begins in them."""

    tokens: NDArray[np.uint32]
    starts: NDArray[np.int64]
    targets: NDArray[np.int64]
    """How many targets each sequence has."""
    vocabulary: int
    end: int
    """The token after each document."""

    def __len__(self) -> int:
        return len(self.starts)

    def sequence(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(inputs, targets) of one sequence, both filled up to a multiple of the alignment: what comes after the
        targets has none, and no token before it can see it."""
        start, count = int(self.starts[number]), int(self.targets[number])
        rows = -(-count // ALIGNMENT) * ALIGNMENT
        inputs, targets = np.full(rows, self.end, np.int64), np.full(rows, IGNORED, np.int64)
        inputs[:count] = self.tokens[start : start + count]
        targets[:count] = self.tokens[start + 1 : start + count + 1]
        return inputs, targets

    def digest(self) -> str:
        """SHA-256 of the tokens and of how they are cut."""
        state = hashlib.sha256(f"{self.vocabulary} {self.end} ".encode())
        for array in (self.tokens.astype("<u4"), self.starts.astype("<i8"), self.targets.astype("<i8")):
            state.update(array.tobytes())
        return state.hexdigest()


def load(section: DataSection, words: Tokenizer | None = None) -> Data:
    """The data that a configuration names, in the tokens of these words; without any, in those that it names itself."""
    encode, vocabulary, end = _words(section, named_words(section.tokenizer) if words is None else words)
    pieces = []
    for number, text in enumerate(islice(documents(section), section.max_train_samples), 1):
        try:
            pieces += [encode(text), np.array([end], np.uint32)]
        except UnicodeEncodeError as error:
            message = f"document {number} has half a character at {error.start}; allowed: whole ones"
            raise ValueError(f"data: {message}") from error
    if not pieces:
        raise ValueError(f"data: source {section.source} holds no document; allowed: at least one")
    lengths = np.array([len(pieces[place]) + 1 for place in range(0, len(pieces), 2)], np.int64)
    tokens = np.concatenate(pieces)
    starts, targets = cut_joined(len(tokens), section.max_length)
    if section.documents == "apart":
        starts, targets = cut_apart(lengths, section.max_length)
    if not len(starts):
        raise ValueError(f"data: {len(tokens)} tokens make no sequence of {section.max_length}; allowed: at least one")
    return Data(tokens=tokens, starts=starts, targets=targets, vocabulary=vocabulary, end=end)


def cut_joined(tokens: int, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sequences end to end: the last target of one is the first input of the next."""
    starts = np.arange((tokens - 1) // length, dtype=np.int64) * length
    return starts, np.full_like(starts, length)


def cut_apart(lengths: NDArray[np.int64], length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each document in pieces of at most `length` targets; a document's first token is no target."""
    starts, targets, begin = [], [], 0
    for count in lengths.tolist():
        for offset in range(0, count - 1, length):
            starts.append(begin + offset)
            targets.append(min(length, count - 1 - offset))
        begin += count
    return np.array(starts, np.int64), np.array(targets, np.int64)


def named_words(tokenizer: str | None) -> Tokenizer:
    """The tokenizer at a path, or of a model known by name; where none is named, or `bytes` is, one of bytes."""
    if tokenizer in (None, IN_BYTES):
        return Tokenizer.of_bytes()
    inside = tokenizer in KNOWN or tokenizer.endswith(".gguf")
    return load_tokenizer(tokenizer) if inside else Tokenizer.load(Path(tokenizer))


def _words(section: DataSection, words: Tokenizer) -> tuple[Any, int, int]:
    """(text to tokens, vocabulary, the end token)."""
    if not words.eos:
        raise ValueError(f"data: the tokenizer {section.tokenizer or ''} has no end token; allowed: one that has")
    if words == Tokenizer.of_bytes():
        # A token a byte: the same numbers without a search for merges.
        return lambda text: np.frombuffer(text.encode(), np.uint8).astype(np.uint32), BYTES + 1, BYTES
    return lambda text: np.array(words.encode(text, special=False), np.uint32), words.vocabulary, words.eos[0]


def documents(section: DataSection) -> Iterator[str]:
    """Every document, in an order that the file system does not decide."""
    if section.source == "stdlib":
        yield from _standard_library(Path(sysconfig.get_paths()["stdlib"]))
        return
    for path in _files(section.paths):
        if section.source == "text":
            yield _text(path)
        elif section.source == "jsonl":
            yield from _json_lines(path, section.text_column)
        else:
            yield from _parquet(path, section.text_column)


def _standard_library(root: Path) -> Iterator[str]:
    """Modules that Python itself lists, which are the same on every platform; what a build generates, or somebody put
    beside them, is none of them."""
    named: dict[str, Path] = {}
    for folder, inner, files in os.walk(root):
        at_top = Path(folder) == root
        inner[:] = [name for name in inner if _is_kept(name, at_top)]
        paths = (Path(folder) / name for name in files if name.endswith(".py") and _is_kept(name[:-3], at_top))
        named |= {path.relative_to(root).as_posix(): path for path in paths}
    for name in sorted(named):
        try:
            yield named[name].read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            # A few sources are written in another encoding on purpose.
            continue


def _is_kept(name: str, at_top: bool) -> bool:
    return name not in LEFT_OUT and (not at_top or name in sys.stdlib_module_names)


def _files(paths: list[str]) -> Iterator[Path]:
    for each in map(Path, paths):
        if each.is_dir():
            named = {path.relative_to(each).as_posix(): path for path in each.rglob("*") if path.is_file()}
            yield from (named[name] for name in sorted(named))
        elif each.is_file():
            yield each
        else:
            raise ValueError(f"data: {each} does not exist; expected a file or a folder")


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"data: {path}: byte {error.start} is no UTF-8; allowed: UTF-8 text") from error


def _json_lines(path: Path, name: str) -> Iterator[str]:
    for number, line in enumerate(_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"data: {path}:{number}: not JSON: {' '.join(str(error).split())[:200]}") from error
        if not isinstance(value, dict) or not isinstance(value.get(name), str):
            raise ValueError(f"data: {path}:{number}: has no text {name!r}; allowed: an object with it")
        yield value[name]


def _parquet(path: Path, name: str) -> Iterator[str]:
    # Loaded here: only this source needs it.
    with needed("data: source parquet"):
        import pyarrow  # type: ignore[import-untyped]
        from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]
    try:
        file = ParquetFile(path)
        if name not in file.schema_arrow.names:
            raise ValueError(f"data: {path}: has no column {name!r}; allowed: {', '.join(file.schema_arrow.names)}")
        row = 0
        for batch in file.iter_batches(columns=[name]):
            for value in batch.column(0).to_pylist():
                if not isinstance(value, str):
                    raise ValueError(f"data: {path}: row {row}: {name} is {value!r}; allowed: text")
                yield value
                row += 1
    except pyarrow.ArrowException as error:
        raise ValueError(f"data: {path}: not Parquet: {' '.join(str(error).split())[:200]}") from error
