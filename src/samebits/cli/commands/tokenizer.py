"""`samebits tokenizer train | encode | decode | show`: words learned from texts, and data to ids and back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samebits.cli.console import Json, print_json, progress

if TYPE_CHECKING:
    from samebits.model.tokenizer import Tokenizer

app = typer.Typer(
    help="Byte-level BPE: train it, encode and decode with it.", rich_markup_mode="rich", no_args_is_help=True
)
SCHEMA = "samebits.tokenizer/1"
# What `show` prints of the words, and the longest of them.
SHOWN = 10

Source = Annotated[str, typer.Argument(help="A tokenizer.json, a folder that has one, a .gguf file, or smollm2.")]


@app.command()
def train(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Text files or folders. Default: the Python standard library's sources.")
    ] = None,
    vocabulary: Annotated[int, typer.Option(help="Tokens in all, 257 at least.")] = 2048,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("tokenizer.json"),
    special: Annotated[
        list[str] | None, typer.Option(help="A sign beside <|endoftext|>; may be given several times.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Learn merges from texts. Example: [bold]samebits tokenizer train --vocabulary 2048 --out words.json[/bold]"""
    from samebits.model.batch import ALIGNMENT
    from samebits.model.tokenizer import END, Tokenizer
    from samebits.train.configuration import DataSection
    from samebits.train.data import documents

    if out.suffix != ".json":
        raise ValueError(f"tokenizer train: --out is {str(out)!r}; allowed: a file that ends in .json")
    section = DataSection(
        max_length=ALIGNMENT, source="text" if paths else "stdlib", paths=[str(path) for path in paths or ()]
    )
    count = size = 0

    def texts() -> Iterator[str]:
        nonlocal count, size
        for text in documents(section):
            count, size = count + 1, size + len(text)
            tell(f"{count} documents, {size:,} characters")
            yield text
        tell(f"{count} documents, {size:,} characters: learning merges")

    with progress("reading") as tell:
        words = Tokenizer.train(texts(), vocabulary, (END, *(special or ())))
    words.save(out)
    if as_json:
        print_json(
            {
                "schema": SCHEMA,
                "file": str(out),
                "asked": vocabulary,
                "documents": count,
                "characters": size,
                **_facts(words),
            }
        )
    else:
        short = "" if words.vocabulary == vocabulary else f", of {vocabulary} asked for: the texts give no more"
        print(f"{out}: {words.vocabulary} tokens from {count} documents, {size:,} characters{short}")


@app.command()
def encode(
    source: Source,
    text: Annotated[str | None, typer.Argument(help="The text. Default: the bytes of stdin.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Text that looks like a sign is text.")] = False,
    as_json: Json = False,
) -> None:
    """Text, or any bytes, to ids. Example: [bold]samebits tokenizer encode words.json 'for x in y:'[/bold]"""
    words = _load(source)
    ids = words.encode(sys.stdin.buffer.read() if text is None else text, special=not plain)
    if as_json:
        print_json({"schema": SCHEMA, "ids": ids, "bytes": [words.decode([each]).hex() for each in ids]})
    else:
        print(*ids)


@app.command()
def decode(
    source: Source,
    ids: Annotated[list[int] | None, typer.Argument(help="The ids. Default: those on stdin.")] = None,
    as_json: Json = False,
) -> None:
    """Ids to the bytes they stand for. Example: [bold]samebits tokenizer decode words.json 281 266[/bold]"""
    words = _load(source)
    try:
        given = [int(each) for each in sys.stdin.read().split()] if ids is None else ids
    except ValueError as error:
        raise ValueError(f"tokenizer decode: {error}; allowed: whole numbers, spaces between them") from None
    data = words.decode(given)
    if as_json:
        print_json({"schema": SCHEMA, "bytes": data.hex(), "text": words.text(given)})
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


@app.command()
def show(source: Source, as_json: Json = False) -> None:
    """What a tokenizer holds, and what it lacks. Example: [bold]samebits tokenizer show smollm2[/bold]"""
    words = _load(source)
    facts = _facts(words)
    longest = sorted(words.parts.words, key=lambda word: (-len(word), word))[:SHOWN]
    facts["longest"] = [words.text([words.parts.words[word]]) for word in longest]
    if as_json:
        print_json({"schema": SCHEMA, **facts})
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:{width}}  {value if not isinstance(value, list) else ' '.join(map(repr, value)) or 'none'}")


def _facts(words: Tokenizer) -> dict[str, object]:
    return {
        "vocabulary": words.vocabulary,
        "merges": len(words.parts.merges),
        "bos": words.bos,
        "eos": list(words.eos),
        "added": list(words.parts.added),
        "chat_template": words.template is not None,
        "missing_bytes": [f"{byte:02x}" for byte in sorted(words.missing)],
        "not_carried_out": list(words.parts.dropped),
    }


def _load(source: str) -> Tokenizer:
    from samebits.model.loading import load_tokenizer

    return load_tokenizer(source)
