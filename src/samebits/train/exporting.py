"""The newest checkpoint of a run as a folder in Hugging Face's layout, with all that its tokenizer consists of.

Knows no step and no optimizer. A tokenizer that the run took from such a folder is copied byte for byte: what this
package does not carry out, other programs do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from samebits.model.huggingface import Words, save_folder
from samebits.model.json_file import to_json
from samebits.model.model import Model
from samebits.model.tokenizer import Tokenizer
from samebits.model.tokenizer_copy import tokenizer_files
from samebits.model.tokenizer_settings import GENERATION
from samebits.records.durable import put_in_one_move
from samebits.train import checkpoint
from samebits.train.assessment import shape_of, words_folder, words_of
from samebits.train.configuration import TrainConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class CopiedWords:
    """A tokenizer as it lies in a folder; files that other programs need and that are not there are made."""

    folder: Path
    words: Tokenizer

    def save(self, path: str | Path) -> None:
        self.words.save(path)
        for name, data in tokenizer_files(self.folder):
            (Path(path) / name).parent.mkdir(exist_ok=True)
            put_in_one_move(Path(path) / name, data)
        if not (self.folder / GENERATION).exists():
            ends = {"bos_token_id": self.words.bos, "eos_token_id": list(self.words.eos)}
            put_in_one_move(Path(path) / GENERATION, to_json(ends))


Describe = Callable[[Path, Mapping[str, Tensor]], Mapping[str, bytes]]
"""Small files by name, such as a model card, for a folder under construction and the weights that it has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """A tokenizer, and what is said of the model whose weights are there already."""

    words: Words
    weights: Mapping[str, Tensor]
    describe: Describe

    def save(self, path: str | Path) -> None:
        self.words.save(path)
        for name, data in self.describe(Path(path), self.weights).items():
            put_in_one_move(Path(path) / name, data)


def export(config: TrainConfig, folder: Path, path: Path, describe: Describe | None = None) -> None:
    """Writes the float32 weights of the newest whole checkpoint in `folder` to `path`."""
    words, home = words_of(config), words_folder(config)
    shape = replace(shape_of(config), eos_token_id=words.eos)
    weights = checkpoint.read(folder).weights
    beside: Words = words if home is None else CopiedWords(folder=home, words=words)
    if describe is not None:
        beside = Described(words=beside, weights=weights, describe=describe)
    save_folder(Model(config=shape, weights=weights), path, beside)
