"""The words in a .gguf file: a model has the tokens there that it had before, however many rows it has besides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.post.small_models import CONFIG

from samebits.model.loading import Loaded, load
from samebits.model.model import Model
from samebits.model.tokenizer import END, Tokenizer
from samebits.post.quantizing import Job, quantize


def written(words: Tokenizer, rows: int, folder: Path) -> Tokenizer:
    """The tokenizer as it is read from the file."""
    shape = replace(
        CONFIG, hidden_size=32, head_dim=16, intermediate_size=32, num_hidden_layers=1, vocab_size=rows, eos_token_id=()
    )
    loaded = Loaded(model=Model.new(shape, 4), tokenizer=words)
    quantize(Job(source="small", loaded=loaded, output="q8_0", method="rtn"), folder / "out")
    return load(str(folder / "out" / "model.gguf")).tokenizer


def with_added(*added: str) -> Tokenizer:
    """Bytes, and signs behind them."""
    plain = Tokenizer.of_bytes()
    numbers = {sign: 256 + place for place, sign in enumerate((END, *added))}
    return replace(plain, parts=replace(plain.parts, added=numbers, special=frozenset(numbers)))


def test_the_name_of_a_row_without_a_token_is_no_token(tmp_path: Path) -> None:
    """It was one: a text that holds such a name had other tokens than in the folder that the file was made from."""
    words = Tokenizer.of_bytes()
    found = written(words, 300, tmp_path)
    for number in (256, 257, 290, 299):
        for text in (f"a [unused{number}] b", f"[PAD{number}]", f"[_unused{number}]"):
            assert found.encode(text) == words.encode(text)
    assert found.vocabulary == words.vocabulary


def test_more_rows_than_there_may_be_added_tokens(tmp_path: Path) -> None:
    """The file was written, and could not be read."""
    assert written(Tokenizer.of_bytes(), 9000, tmp_path).encode("for x") == list(b"for x")


def test_a_token_that_is_called_as_an_empty_row_would_be(tmp_path: Path) -> None:
    """Two of one name: the file was written, and could not be read."""
    words = with_added("[unused290]", "[_unused3]")
    found = written(words, 300, tmp_path)
    assert found.parts.added == words.parts.added
    assert found.encode("x[unused290][unused291]") == words.encode("x[unused290][unused291]")


def test_an_end_that_would_be_lost_is_refused(tmp_path: Path) -> None:
    words = with_added("<|eot|>", "<|eom|>")
    assert written(replace(words, eos=(256, 257)), 300, tmp_path).eos == (256, 257)
    with pytest.raises(ValueError, match="gguf: 3 tokens end a text; allowed: at most 2"):
        written(replace(words, eos=(256, 257, 258)), 300, tmp_path / "more")
