"""Documents become tokens and sequences, the same ones everywhere; the order of an epoch is a function of the seed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from tests.train.small_run import small

from samebits.model.batch import IGNORED
from samebits.model.tokenizer import Tokenizer
from samebits.numerics.elementary.philox import philox_uint32
from samebits.train.configuration import DataSection
from samebits.train.data import BYTES, Data, documents, load
from samebits.train.data_order import permutation, sequences_of

TEXTS = ["def f(x):\n    return x\n", "naïve café", "a" * 40, ""]


def text_of(data: Data, number: int) -> bytes:
    inputs, targets = data.sequence(number)
    real = targets != IGNORED
    assert np.array_equal(inputs[1:][real[1:]], targets[:-1][real[1:]])
    return bytes(token for token in targets[real].tolist() if token < BYTES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number}.txt").write_text(text)
    return tmp_path


def test_joined_documents_are_cut_into_equal_sequences(folder: Path) -> None:
    data = load(DataSection(max_length=16, source="text", paths=[str(folder)]))
    whole = b"".join(text.encode() for text in TEXTS)
    assert data.vocabulary == 257 and len(data) == (len(whole) + len(TEXTS) - 1) // 16
    assert (data.targets == 16).all() and list(data.tokens).count(BYTES) == len(TEXTS)
    seen = b"".join(text_of(data, number) for number in range(len(data)))
    assert whole[1:].startswith(seen)


def test_documents_apart_share_no_sequence(folder: Path) -> None:
    data = load(DataSection(max_length=16, source="text", paths=[str(folder)], documents="apart"))
    # The first token of a document is no target; its end is.
    assert data.targets.tolist() == [16, 7, 12, 16, 16, 8]
    assert b"".join(text_of(data, number) for number in range(len(data))) == b"".join(
        text.encode()[1:] for text in TEXTS
    )
    inputs, targets = data.sequence(1)
    assert len(inputs) == 16 and (targets[7:] == IGNORED).all() and (inputs[7:] == BYTES).all()


def test_json_lines_and_parquet_hold_the_same_documents(folder: Path) -> None:
    (folder / "all.jsonl").write_text("\n".join(json.dumps({"text": text, "other": 1}) for text in TEXTS) + "\n\n")
    pyarrow.parquet.write_table(pyarrow.table({"n": [1, 2, 3, 4], "text": TEXTS}), folder / "all.parquet")
    sections = [DataSection(max_length=16, source="text", paths=[str(folder / f"{n}.txt") for n in range(len(TEXTS))])]
    sections += [
        DataSection(max_length=16, source=kind, paths=[str(folder / f"all.{kind}")]) for kind in ("jsonl", "parquet")
    ]
    assert len({load(section).digest() for section in sections}) == 1
    assert load(replace(sections[1], max_train_samples=3)).digest() != load(sections[1]).digest()


def test_a_tokenizer_makes_the_tokens(folder: Path) -> None:
    words = Tokenizer.train(TEXTS, 280)
    words.save(folder / "tokenizer.json")
    path = str(folder / "tokenizer.json")
    paths = [str(folder / f"{number}.txt") for number in range(len(TEXTS))]
    data = load(DataSection(max_length=16, source="text", paths=paths, tokenizer=path))
    assert data.tokens.tolist() == [token for text in TEXTS for token in (*words.encode(text), words.eos[0])]
    assert data.vocabulary == words.vocabulary


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("bad.txt", b"ab\xff", r"bad.txt: byte 2 is no UTF-8; allowed: UTF-8 text"),
        ("bad.jsonl", b'{"text": "a"}\n{"text"', r"bad.jsonl:2: not JSON: .*"),
        ("bad.jsonl", b'{"text": 5}', r"bad.jsonl:1: has no text 'text'; allowed: an object with it"),
        ("bad.jsonl", b'{"text": "\\ud800"}', r"document 1 has half a character at 0; allowed: whole ones"),
        ("bad.jsonl", b"[" * 100_000, r"bad.jsonl:1: not JSON: .*"),
        ("bad.parquet", b"PAR1", r"bad.parquet: not Parquet: .*"),
        ("bad.txt", b"short", r"6 tokens make no sequence of 16; allowed: at least one"),
        ("bad.jsonl", b"", r"source jsonl holds no document; allowed: at least one"),
    ],
    ids=["utf-8", "json", "field", "surrogate", "deep", "parquet", "short", "empty"],
)
def test_bad_files_are_one_line(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    kind = {".txt": "text"}.get(path.suffix, path.suffix[1:])
    with pytest.raises(ValueError, match=f"^data: (?:{tmp_path}/)?{said}$"):
        load(DataSection(max_length=16, source=kind, paths=[str(path)]))


def test_paths_and_columns_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^data: .*gone does not exist; expected a file or a folder$"):
        load(DataSection(max_length=16, source="text", paths=[str(tmp_path / "gone")]))
    pyarrow.parquet.write_table(pyarrow.table({"body": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"has no column 'text'; allowed: body$"):
        load(DataSection(max_length=16, source="parquet", paths=[str(tmp_path / "a.parquet")]))


def test_the_standard_library_without_its_tests() -> None:
    first = list(documents(small().data))
    assert len(first) > 300 and any("class OrderedDict" in text for text in first)
    assert not any("import site_packages" in text or "class BaseTestCase" in text for text in first)


# What two machines with one version of Python have beside the same modules: generated, stripped, patched, installed.
HERE = (
    "_sysconfigdata__linux_x86_64-linux-gnu.py",
    "config-3.11-x86_64-linux-gnu/python-config.py",
    "sysconfig.py",
    "test/test_json.py",
    "site-packages/numpy/__init__.py",
    "sitecustomize.py",
    "json/tests/a.py",
)
THERE = (
    "_sysconfigdata__linux_aarch64-linux-gnu.py",
    "dist-packages/six.py",
    "lib-dynload/readme.py",
    "idlelib/a.py",
    "ensurepip/__init__.py",
    "json/__pycache__/decoder.py.py",
    "distutils/command/install.py",
)


def library(root: Path, *names: str) -> str:
    """The digest of a standard library of two modules and what else a platform has."""
    for name in ("json/__init__.py", "json/decoder.py", "abc.py", *names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"# {name} in {root if name in names else 'Python'}\n" * 9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("samebits.train.data.sysconfig.get_paths", lambda: {"stdlib": str(root)})
        return load(DataSection(max_length=16)).digest()


def test_the_standard_library_is_the_same_on_every_platform(tmp_path: Path) -> None:
    plain = library(tmp_path / "plain")
    assert library(tmp_path / "here", *HERE) == library(tmp_path / "there", *THERE) == plain
    # Planted fault: a module of the standard library that differs is another digest.
    assert library(tmp_path / "other", "csv.py") != plain


def test_an_epoch_sees_every_sequence_once() -> None:
    seen = np.concatenate([sequences_of(step, seed=3, sequences=50, batch=8) for step in range(1, 7)])
    assert len(seen) == len(set(seen.tolist())) == 48 and set(seen.tolist()) <= set(range(50))
    second = np.concatenate([sequences_of(step, seed=3, sequences=50, batch=8) for step in range(7, 13)])
    assert len(set(second.tolist())) == 48 and not np.array_equal(seen, second)


def test_the_order_is_a_function_of_seed_and_step() -> None:
    late = sequences_of(1000, seed=3, sequences=50, batch=8)
    permutation.cache_clear()
    assert np.array_equal(late, sequences_of(1000, seed=3, sequences=50, batch=8))
    assert not np.array_equal(late, sequences_of(1000, seed=4, sequences=50, batch=8))
    # By its definition: places sorted by 64-bit keys, two words each.
    words = philox_uint32(int.from_bytes(hashlib.sha256(b"42 order").digest()[:8]), 5, 60).tolist()
    assert permutation(42, 5, 30).tolist() == sorted(range(30), key=lambda n: words[2 * n] << 32 | words[2 * n + 1])
    with pytest.raises(ValueError, match=r"^order: step is 0"):
        sequences_of(0, seed=3, sequences=50, batch=8)
