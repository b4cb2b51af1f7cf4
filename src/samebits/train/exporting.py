"""The newest checkpoint of a run as a folder in Hugging Face's layout, its tokenizer beside it.

Knows no step and no optimizer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from samebits.model.huggingface import save_folder
from samebits.model.model import Model
from samebits.model.tokenizer import Tokenizer
from samebits.train import checkpoint
from samebits.train.configuration import Configuration
from samebits.train.planning import shape_of


def refuse_if_taken(path: Path) -> None:
    """Asked before a run, so that its result has a place."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"--export {path}: is there already; allowed: a new folder, or an empty one")


def export(config: Configuration, folder: Path, path: Path) -> None:
    """Writes the float32 weights of the newest whole checkpoint in `folder` to `path`."""
    named = config.data.tokenizer
    words = Tokenizer.of_bytes() if named is None else Tokenizer.load(named)
    shape = replace(shape_of(config), eos=words.eos)
    save_folder(Model(config=shape, weights=checkpoint.read(folder).weights), path, words)
