"""All that a tokenizer consists of in a folder of Hugging Face's layout, file by file, as it is.

What this package does not carry out, other programs do; so it is copied byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from samebits.model.json_file import MOST_BYTES
from samebits.model.tokenizer import FILE
from samebits.model.tokenizer_settings import GENERATION, SETTINGS, SIGNS, TEMPLATE_FILE
from samebits.records.plain_file import read_plain

# What a folder may have of a tokenizer, each a plain file.
COPIED: Final = (FILE, SETTINGS, SIGNS, TEMPLATE_FILE, GENERATION, "added_tokens.json", "vocab.json", "merges.txt")
# Where transformers looks for further templates, by name.
TEMPLATES: Final = "additional_chat_templates"


def tokenizer_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each file that is there."""
    more = folder / TEMPLATES
    named = sorted(f"{TEMPLATES}/{file.name}" for file in more.glob("*.jinja")) if more.is_dir() else []
    for name in (*COPIED, *named):
        if (folder / name).exists():
            yield name, read_plain(folder / name, MOST_BYTES)
