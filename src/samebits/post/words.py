"""The tokenizer beside a new model: copied file by file where the model had them, else written from what was read."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from samebits.model.tokenizer import FILE, Tokenizer
from samebits.model.tokenizer_copy import tokenizer_files
from samebits.post.folder import NewFolder


def put_words(source: str, tokenizer: Tokenizer, folder: NewFolder) -> None:
    """Into the folder under construction."""
    if (Path(source) / FILE).is_file():
        for name, data in tokenizer_files(Path(source)):
            folder.put(name, data)
        return
    with TemporaryDirectory() as made:
        tokenizer.save(made)
        for file in sorted(Path(made).iterdir()):
            folder.put(file.name, file.read_bytes())
