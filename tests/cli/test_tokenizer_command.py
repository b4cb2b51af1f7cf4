"""`samebits tokenizer`: what it writes can be read, what it encodes comes back, what is wrong is one line."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from samebits.model.tokenizer import Tokenizer

Samebits = Callable[..., object]
TEXT = "for each in words:\n    yield each\n" * 20


@pytest.fixture
def words(samebits: Samebits, tmp_path: Path) -> str:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text(TEXT)
    ran = samebits("tokenizer", "train", "texts", "--vocabulary", "270", "--out", "words.json", "--special", "<|sep|>")
    assert ran.code == 0 and ran.err == ""
    assert ran.out == f"words.json: 270 tokens from 1 documents, {len(TEXT)} characters\n"
    return "words.json"


def test_text_and_bytes_come_back(samebits: Samebits, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = samebits("tokenizer", "encode", words, "each word<|sep|>", "--json")
    found = json.loads(ran.out)
    assert b"".join(map(bytes.fromhex, found["bytes"])) == b"each word<|sep|>" and len(found["ids"]) < 10
    plain = samebits("tokenizer", "encode", words, "<|sep|>", "--plain")
    assert len(plain.out.split()) > len(samebits("tokenizer", "encode", words, "<|sep|>").out.split()) == 1
    data = b"\xff\x00 \xc3\xa9"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    ids = samebits("tokenizer", "encode", words).out.split()
    back = samebits("tokenizer", "decode", words, *ids, "--json")
    assert bytes.fromhex(json.loads(back.out)["bytes"]) == data
    assert samebits("tokenizer", "decode", words, *plain.out.split()).out == "<|sep|>"
    monkeypatch.setattr(sys, "stdin", io.StringIO(" ".join(plain.out.split())))
    assert samebits("tokenizer", "decode", words).out == "<|sep|>"


def test_show_says_what_is_in_it(samebits: Samebits, words: str) -> None:
    found = json.loads(samebits("tokenizer", "show", words, "--json").out)
    assert found["schema"] == "samebits.tokenizer/1" and found["vocabulary"] == 270 and found["merges"] == 12
    assert found["added"] == ["<|endoftext|>", "<|sep|>"] and found["eos"] == [0] and found["missing_bytes"] == []
    assert " each" in found["longest"]
    ran = samebits("tokenizer", "show", words)
    assert ran.code == 0 and "missing_bytes    none" in ran.out


def test_training_says_where_texts_give_no_more(samebits: Samebits, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("ab ab")
    ran = samebits("tokenizer", "train", "short.txt", "--vocabulary", "9999", "--out", "few.json", "--json")
    found = json.loads(ran.out)
    assert found["asked"] == 9999 and found["vocabulary"] == Tokenizer.load(tmp_path / "few.json").vocabulary < 300
    ran = samebits("tokenizer", "train", "short.txt", "--vocabulary", "9999", "--out", "few.json")
    assert "of 9999 asked for: the texts give no more" in ran.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "missing", "--out", "x.json"), "missing does not exist; expected a file or a folder"),
        (("train", "--vocabulary", "9", "--out", "x.json"), "vocabulary is 9; allowed: at least 257"),
        (("train", "--out", "x.txt"), "--out is 'x.txt'; allowed: a file that ends in .json"),
        (("encode", "nothing.json", "a"), "no tokenizer at 'nothing.json'; allowed"),
        (("encode", "smolm2", "a"), "did you mean 'smollm2'?"),
        (("decode", "bad.json", "1"), "bad.json: "),
    ],
)
def test_what_is_wrong_is_one_line(
    samebits: Samebits, arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.json").write_text("{")
    ran = samebits("tokenizer", *arguments)
    assert ran.code == 2 and ran.out == "" and message in ran.err and ran.err.count("\n") == 1
    assert not (tmp_path / "x.json").exists()


def test_every_subcommand_has_an_example(samebits: Samebits) -> None:
    for name in ("train", "encode", "decode", "show"):
        assert "Example" in samebits("tokenizer", name, "--help").out
