"""Evaluation: one digest for every batch size, kills and all; the harness's formulas; one line for what cannot be."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from samebits.cli import main
from samebits.infer import evaluate_journal
from samebits.infer.evaluate import RESULTS, Evaluation, evaluate
from samebits.infer.evaluate_tasks import Document, choice_metrics, multiple_choice, pair_of, text, text_metrics
from samebits.infer.scoring import Pair, Scored, Scorer, rolling
from samebits.model import Batch, Model, ModelConfig
from samebits.model.loading import load
from samebits.model.tokenizer import Tokenizer
from samebits.nn.strategy import OURS, logprob

WORDS = Tokenizer.of_bytes()
SHAPE = ModelConfig(
    vocab_size=272,
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=80,
    max_position_embeddings=97,
)
MODEL = Model.new(SHAPE, 3)
LONGEST = 96
EXAMPLE = Path(__file__).resolve().parents[2] / "examples/evaluate/questions.jsonl"
QUESTIONS = [
    {
        "question": f"{number} and {number + 1} make ",
        "choices": ["a", "b c" * (number % 4 + 1), "ü"],
        "answer": number % 3,
    }
    for number in range(20)
]
TEXTS = [{"text": "Some words. " * (3 * number + 1)} for number in range(4)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for name, lines in (("questions", QUESTIONS), ("texts", TEXTS)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    return folder


def evaluation(files: Path, model: Model = MODEL) -> Evaluation:
    tasks = (
        multiple_choice(files / "questions.jsonl", WORDS, LONGEST, None),
        text(files / "texts.jsonl", WORDS, LONGEST, None),
    )
    return Evaluation(model=model, words=WORDS, tasks=tasks, longest=LONGEST)


def test_any_batch_size_gives_the_same_bits(files: Path) -> None:
    """--batch-size 1 == 3 == 16: every loglikelihood, by one digest."""
    found = [evaluate(evaluation(files), batch_size=size) for size in (1, 3, 16)]
    assert found[0] == found[1] == found[2]


def by_rows(hidden: Tensor, weight: Tensor, ids: Tensor, sums: None) -> Tensor:
    """Planted: a loss whose bits follow the number of rows."""
    if len(hidden) < 40:
        return logprob(hidden, weight, ids, sums)
    return torch.log_softmax(hidden @ weight.T, -1).gather(-1, ids[:, None])[:, 0]


def test_a_batch_that_decides_bits_is_seen(files: Path) -> None:
    faulty = replace(MODEL, operators=replace(OURS, logprob=by_rows))
    digests = {evaluate(evaluation(files, faulty), batch_size=size)["digest"] for size in (1, 16)}
    assert len(digests) == 2


def test_a_score_is_the_forward_pass(files: Path) -> None:
    """The training forward over all pairs at once gives the engine's logprobs, bit for bit."""
    pairs = [pair for document in evaluation(files).documents().values() for pair in document.pairs]
    with torch.no_grad():
        hidden = MODEL.hidden(Batch.of([pair.tokens[:-1] for pair in pairs]))
        targets = torch.tensor([token for pair in pairs for token in pair.tokens[1:]])
        every = iter(MODEL.logprobs(hidden, targets).tolist())
    for pair, scored in zip(pairs, Scorer(MODEL, batch_size=5).score(pairs), strict=True):
        own = [next(every) for _ in pair.tokens[1:]]
        assert scored.logprobs == tuple(own[len(pair.context) - 1 :]) and scored.greedy is None


def test_greedy_is_what_decoding_gives() -> None:
    scorer, context = Scorer(MODEL, batch_size=2), tuple(b"abc")
    with torch.no_grad():
        best = [int(MODEL.logits(MODEL.hidden(Batch.of([context]))[-1:]).argmax())]
        best.append(int(MODEL.logits(MODEL.hidden(Batch.of([(*context, *best)]))[-1:]).argmax()))
    pairs = [Pair(context=context, continuation=tuple(each)) for each in (best, [best[0], (best[1] + 1) % 272])]
    assert [each.greedy for each in scorer.score(pairs, greedy=True)] == [True, False]


def test_windows_are_those_of_the_harness() -> None:
    """Its own example: ten tokens, a context of four; every token once, the last window with full context."""
    pairs = rolling(list(range(10)), 99, 5)
    assert [(each.context, each.continuation) for each in pairs] == [
        ((99,), (0, 1, 2, 3)),
        ((3,), (4, 5, 6, 7)),
        ((5, 6, 7), (8, 9)),
    ]
    assert rolling([], 99, 5) == [] and len(rolling([1], 99, 2)) == 1


def test_a_pair_is_cut_as_one_text() -> None:
    pair = pair_of(WORDS, "ab ", "c")
    assert pair == Pair(context=tuple(b"ab"), continuation=tuple(b" c"))
    assert pair_of(WORDS, "", "c") == Pair(context=(256,), continuation=tuple(b"c"))
    assert pair_of(WORDS, "abcdef", " g").within(5) == Pair(context=tuple(b"def"), continuation=tuple(b" g"))
    with pytest.raises(ValueError, match="a continuation has 5 tokens; allowed: at most 3"):
        pair_of(WORDS, "a", "bcdef").within(4)


def test_accuracies_are_those_of_the_harness() -> None:
    """The likeliest, the first of equals; by characters; the error of the mean."""
    documents = [Document(pairs=(), answer=answer, sizes=(1, 4, 2)) for answer in (1, 0, 2, 1)]
    found = choice_metrics(documents, [(-3.0, -4.0, -9.0), (-2.0, -2.0, -3.0), (-5.0, -8.0, -1.0), (-1.0, -9.0, -9.0)])
    # By size: (-3, -1, -4.5), (-2, -.5, -1.5), (-5, -2, -.5), (-1, -2.25, -4.5).
    assert found["acc"] == 0.5 and found["acc_norm"] == 0.5
    assert math.isclose(found["acc_stderr"], math.sqrt(0.25 / 3))
    assert choice_metrics(documents[:1], [(-1.0, -0.5, -2.0)])["acc_stderr"] == 0.0


def test_perplexities_are_those_of_the_harness() -> None:
    documents = [Document(pairs=(), sizes=(4, 2, 8)), Document(pairs=(), sizes=(4, 2, 8))]
    found = text_metrics(documents, [(-1.0, -3.0), (-4.0,)])
    for name, power in (("perplexity", 1.0), ("word_perplexity", 2.0), ("byte_perplexity", 0.5)):
        assert math.isclose(found[name], math.exp(power), rel_tol=2.0**-23)
    assert math.isclose(found["bits_per_byte"], 0.5 / math.log(2))
    assert text_metrics(documents, [(-1e6,), (0.0,)])["perplexity"] == math.inf


class KilledError(BaseException):
    """The end of a process."""


@pytest.mark.parametrize("entries", [0, 1, 3])
def test_killed_and_resumed(entries: int, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the middle of an entry; resumed in another batch size: the bytes of both files are those of one go."""
    whole = evaluate(evaluation(files), batch_size=2, folder=tmp_path / "whole")
    real, seen = evaluate_journal.Journal.add, []

    def dying(journal: evaluate_journal.Journal, scored: dict[Any, Sequence[float]]) -> None:
        if len(seen) == entries:
            os.write(journal._handle, b'{"task": "questions", "docu')
            raise KilledError
        seen.append(1)
        real(journal, scored)

    with monkeypatch.context() as patch:
        patch.setattr(evaluate_journal.Journal, "add", dying)
        with pytest.raises(KilledError):
            evaluate(evaluation(files), batch_size=2, folder=tmp_path / "cut")
    assert not (tmp_path / "cut" / RESULTS).exists()
    assert evaluate(evaluation(files), batch_size=7, folder=tmp_path / "cut", resume=True) == whole
    for name in (RESULTS, evaluate_journal.NAME):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_what_was_scored_is_not_scored_again(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate(evaluation(files), batch_size=2, folder=tmp_path)

    def never(*_: object, **__: object) -> list[Scored]:
        raise AssertionError("scored again")

    monkeypatch.setattr(Scorer, "score", never)
    assert evaluate(evaluation(files), batch_size=4, folder=tmp_path, resume=True)["results"]
    with pytest.raises(ValueError, match=r"holds an evaluation; allowed: --resume, or another folder$"):
        evaluate(evaluation(files), batch_size=4, folder=tmp_path)
    with pytest.raises(ValueError, match=r"model was 'sha256:.*' and is now 'sha256:.*'; allowed: as it was, or"):
        evaluate(evaluation(files, Model.new(SHAPE, 4)), batch_size=4, folder=tmp_path, resume=True)
    held = evaluate_journal.opened(tmp_path, evaluation(files).facts(), resume=True)
    with held, pytest.raises(ValueError, match="another evaluation is at work here"):
        evaluate(evaluation(files), batch_size=4, folder=tmp_path, resume=True)


def test_a_full_disk_ends_an_evaluation_that_can_be_resumed(files: Path, tmp_path: Path) -> None:
    """The system takes half of an entry without an error: the last one of all was lost in silence."""
    whole = evaluate(evaluation(files), batch_size=2, folder=tmp_path / "whole")
    size = (tmp_path / "whole" / evaluate_journal.NAME).stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, hard))
        with pytest.raises(OSError, match=rf"File too large: '.*{evaluate_journal.NAME}'"):
            evaluate(evaluation(files), batch_size=2, folder=tmp_path / "cut")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "cut" / RESULTS).exists()
    assert evaluate(evaluation(files), batch_size=2, folder=tmp_path / "cut", resume=True) == whole


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["evaluate", *words])
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


def test_the_command_says_one_digest_for_two_batch_sizes(command: Command, files: Path, tmp_path: Path) -> None:
    given = ("--model", "tiny@0", "--task", str(files / "questions.jsonl"), "--text", str(files / "texts.jsonl"))
    documents = []
    for size in ("1", "16"):
        code, out, _ = command(*given, "--batch-size", size, "--json", "--limit", "6", "--out", str(tmp_path / size))
        documents.append(json.loads(out))
        assert code == 0 and documents[-1]["schema"] == "samebits.evaluate/1"
    assert documents[0]["digest"] == documents[1]["digest"] and documents[0]["results"] == documents[1]["results"]
    assert (tmp_path / "1" / RESULTS).read_bytes() == (tmp_path / "16" / RESULTS).read_bytes()
    code, out, _ = command(*given, "--dry-run", "--json")
    plan = json.loads(out)["plan"]
    assert code == 0 and [(row["task"], row["documents"], row["sequences"]) for row in plan] == [
        ("questions", 20, 60),
        ("texts", 4, 4),
    ]
    code, out, _ = command(*given, "--limit", "2")
    assert code == 0 and "acc_norm" in out and "bits_per_byte" in out and "all loglikelihoods: sha256:" in out


BAD = {
    "nothing": ((), "", "there is nothing to evaluate; allowed: at least one --task or --text"),
    "no file": (("--task", "nowhere.jsonl"), "", "nowhere.jsonl: no such file"),
    "no json": (("--task", "bad.jsonl"), "{", "bad.jsonl:1: "),
    "question": (("--task", "bad.jsonl"), '{"choices": ["a", "b"], "answer": 0}', "bad.jsonl:1: question is None"),
    "choices": (("--task", "bad.jsonl"), '{"question": "q", "choices": ["a"], "answer": 0}', "a list of 2 to 64 texts"),
    "answer": (
        ("--task", "bad.jsonl"),
        '\n{"question": "q", "choices": ["a", "b"], "answer": 2}',
        "bad.jsonl:2: answer is 2; allowed: a choice, or its number, 0 to 1",
    ),
    "empty": (("--task", "bad.jsonl"), "\n\n", "bad.jsonl: holds no document; allowed: at least one"),
    "text": (("--text", "bad.jsonl"), '{"words": 1}', "bad.jsonl:1: text is None; allowed: text"),
    "batch size": (("--text", "bad.jsonl", "--batch-size", "0"), "", "batch_size is 0; allowed: 1 to 65536"),
    "length": (("--text", "bad.jsonl", "--max-length", "1"), "", "--max-length is 1; allowed: 2 to 1023"),
    "resume": (("--text", "bad.jsonl", "--resume"), "", "evaluate: --resume requires --out"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_one_line(
    name: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words, content, said = BAD[name]
    (tmp_path / "bad.jsonl").write_text(content)
    code, out, err = command("--model", "tiny@0", *words)
    assert code == 2 and said in err and err.count("\n") == 1 and not out
    assert [path.name for path in tmp_path.iterdir()] == ["bad.jsonl"]


def test_two_files_of_one_name_are_refused(command: Command, files: Path, tmp_path: Path) -> None:
    other = tmp_path / "questions.jsonl"
    other.write_bytes((files / "questions.jsonl").read_bytes())
    given = ("--task", str(other), "--task", str(files / "questions.jsonl"))
    code, _, err = command("--model", "tiny@0", *given, "--dry-run")
    assert code == 2 and "2 files are named questions; allowed: a name each" in err


def test_a_process_that_is_killed_goes_on(files: Path, tmp_path: Path) -> None:
    """SIGKILL when the first documents are on the disk."""
    words = ["evaluate", "--model", "tiny@0", "--task", str(files / "questions.jsonl"), "--out", str(tmp_path / "out")]
    process = [sys.executable, "-m", "samebits.cli", *words, "--batch-size", "1", "--resume", "--json"]
    journal = tmp_path / "out" / evaluate_journal.NAME
    with subprocess.Popen(process, stdout=subprocess.DEVNULL) as started:
        while started.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < 3):
            time.sleep(0.005)
        os.kill(started.pid, signal.SIGKILL)
    ended = subprocess.run(process, capture_output=True, text=True, check=True)
    loaded = load("tiny@0")
    task = multiple_choice(files / "questions.jsonl", loaded.tokenizer, 1023, None)
    whole = Evaluation(model=loaded.model, words=loaded.tokenizer, tasks=(task,), longest=1023)
    assert json.loads(ended.stdout)["digest"] == evaluate(whole, batch_size=16)["digest"]


def test_the_example_is_the_same_in_any_batch_size() -> None:
    """SmolLM2 on the shipped questions, the first two of them."""
    loaded = load("smollm2")
    task = multiple_choice(EXAMPLE, loaded.tokenizer, 2048, 2)
    chosen = Evaluation(model=loaded.model, words=loaded.tokenizer, tasks=(task,), longest=2048)
    one, many = (evaluate(chosen, batch_size=size) for size in (1, 16))
    assert one == many and one["results"]["questions"]["acc"] == 1.0
