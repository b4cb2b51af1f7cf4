"""What an evaluation must not take for its own, score, or write as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from samebits.infer.evaluate import RESULTS, Evaluation, evaluate
from samebits.infer.evaluate_journal import NAME
from samebits.infer.evaluate_tasks import multiple_choice, text
from samebits.model.loading import load
from samebits.records.report import UnjudgedError

LOADED = load("tiny@0")
QUESTION = {"question": "a", "choices": ["b", "c"], "answer": 0}


def asked(folder: Path) -> Evaluation:
    file = folder / "asked.jsonl"
    file.write_text(json.dumps(QUESTION) + "\n")
    words = LOADED.tokenizer
    return Evaluation(model=LOADED.model, words=words, tasks=(multiple_choice(file, words, 64, None),), longest=64)


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("theirs", [b'{"mine": 1}', b'{"mine": 1}\n', b'{"mine": 1}\nand no end'])
def test_a_file_of_somebody_else_stays_as_it_is(theirs: bytes, resume: bool, tmp_path: Path) -> None:
    """One line without an end was taken for what a kill leaves, and written over; of two the second was cut off."""
    (tmp_path / NAME).write_bytes(theirs)
    with pytest.raises(ValueError, match=r"allowed: (as it was|--resume|another folder)"):
        evaluate(asked(tmp_path), batch_size=1, folder=tmp_path, resume=resume)
    assert (tmp_path / NAME).read_bytes() == theirs


def test_a_first_line_that_a_kill_cut_short_is_written_anew(tmp_path: Path) -> None:
    evaluation = asked(tmp_path)
    whole = (json.dumps(evaluation.facts()) + "\n").encode()
    for size in (0, 1, len(whole) - 1):
        folder = tmp_path / str(size)
        folder.mkdir()
        (folder / NAME).write_bytes(whole[:size])
        evaluate(evaluation, batch_size=1, folder=folder)
        assert (folder / NAME).read_bytes().startswith(whole)


def test_an_infinite_perplexity_is_null(tmp_path: Path) -> None:
    """A long text without spaces is one word. JSON has no number for its perplexity."""
    (tmp_path / "long.txt").write_text("x" * 60)
    words = LOADED.tokenizer
    evaluation = Evaluation(
        model=LOADED.model, words=words, tasks=(text(tmp_path / "long.txt", words, 64, None),), longest=64
    )
    found = evaluate(evaluation, batch_size=1, folder=tmp_path / "out")["results"]["long"]
    assert found["word_perplexity"] is None and math.isfinite(found["perplexity"])

    def refused(constant: str) -> NoReturn:
        raise AssertionError(constant)

    json.loads((tmp_path / "out" / RESULTS).read_text(), parse_constant=refused)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"question": "a\ud800"}, "asked.jsonl:2: question is 'a\\\\ud800'; allowed: text"),
        ({"choices": ["b", "\udfff"]}, r"asked.jsonl:2: choices is \['b', '\\udfff'\]; allowed: a list of 2 to 64"),
        ({"choices": ["b", "c" * 80]}, "asked.jsonl:2: scoring: a continuation has 81 tokens; allowed: at most 63"),
    ],
)
def test_what_cannot_be_scored_is_named_with_its_line(changed: dict[str, object], said: str, tmp_path: Path) -> None:
    file = tmp_path / "asked.jsonl"
    file.write_text(json.dumps(QUESTION) + "\n" + json.dumps(QUESTION | changed) + "\n")
    with pytest.raises(ValueError, match=said):
        multiple_choice(file, LOADED.tokenizer, 64, None)


def test_a_model_without_finite_logits_cannot_be_judged(tmp_path: Path) -> None:
    model = LOADED.model
    broken = replace(model, weights={name: weight * math.nan for name, weight in model.weights.items()})
    with pytest.raises(UnjudgedError, match=r"documents asked:0 to asked:0, from 0: .*logits are not finite"):
        evaluate(replace(asked(tmp_path), model=broken), batch_size=1)
