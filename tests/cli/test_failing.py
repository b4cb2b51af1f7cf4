"""How commands fail: one line, an exit code, a document with --json; and files that are no plain files are refused."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.train.small_run import TEXT

from samebits.cli import app, main
from samebits.cli.errors import one_line, wants_json

SMALL = (
    "--set",
    "training.max_steps=2",
    "--set",
    "optimizer.warmup_steps=1",
    "--set",
    "data.max_train_samples=3",
    "--set",
    "training.save_steps=1",
)


def ran(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(words)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.mark.parametrize(
    "words", [("sim", "validate", "--cases"), ("tokenizer", "show", "smollm2", "--json"), ("--help",)]
)
@pytest.mark.parametrize(("sink", "code"), [("closed pipe", 141), ("full disk", 2)])
def test_a_stdout_that_takes_no_more_is_no_verdict_and_no_traceback(
    words: tuple[str, ...], sink: str, code: int
) -> None:
    """Not 1, which says "does not hold"."""
    if sink == "closed pipe":
        reader, where = os.pipe()
        os.close(reader)
    else:
        where = os.open("/dev/full", os.O_WRONLY)
    ended = subprocess.run([sys.executable, "-m", "samebits.cli", *words], stdout=where, stderr=subprocess.PIPE)
    os.close(where)
    said = ended.stderr.decode()
    assert ended.returncode == code
    assert said == ("" if code == 141 else "samebits: No space left on device\n")


@pytest.mark.parametrize(
    "words",
    [
        ("check", "nothing"),
        ("reveal", "nothing:at_all"),
        ("plan", "absent.yaml"),
        ("train", "absent.yaml", "--out", "x"),
        ("rl", "--steps", "0"),
        ("generate", "--model", "absent", "--prompt", "x"),
        ("serve", "--model", "absent"),
        ("contract", "status", "nothing"),
        ("contract", "audit", "nothing"),
        ("contract", "prove", "--jobs", "0"),
        ("contract", "validate", "--trust", "absent"),
        ("contract", "diff", "absent", "absent"),
        ("contract", "graph", "--format", "nothing"),
        ("tokenizer", "show", "absent"),
        ("launch", "--nproc", "0", "train"),
        ("launch", "--nproc", "1"),
        ("launch", "--nproc", "2", "merge"),
        ("demo", "--out", "absent/page.html"),
        ("doctor", "--nothing"),
        ("nothing",),
        ("train",),
        ("tokenizer", "decode", "absent", "x"),
        ("launch", "--nproc", "2", "--host", "192.0.2.1", "train"),
        ("sim", "run", "absent.py"),
        ("debug", "absent.yaml"),
        ("profile", "absent.py"),
        ("profile", "absent.yaml"),
        ("bench", "nothing"),
        ("bench", "--model", "absent"),
        ("bench", "--record", "absent/record.json"),
        ("diff", "absent", "absent"),
        ("distill", "absent.yaml", "--out", "x"),
        ("merge", "absent.yaml", "--out", "x"),
        ("prune", "absent", "--out", "x"),
        ("quantize", "absent", "--out", "x"),
        ("evaluate", "--model", "absent", "--task", "absent.jsonl"),
        ("sim", "explore", "absent:program"),
    ],
    ids=" ".join,
)
def test_an_error_is_a_document_too(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = (
        ran(capsys, words[0], *words[1:2], "--json", *words[2:]) if len(words) > 1 else ran(capsys, *words, "--json")
    )
    found = json.loads(out)
    assert code == 2 and err.count("\n") == 1 and err.startswith("samebits: ")
    kind, message = found["error"]["kind"], err.removeprefix("samebits: ")[:-1]
    assert found == {"schema": "samebits.error/1", "exit_code": 2, "error": {"kind": kind, "message": message}}
    assert kind in ("usage", "file")


def test_words_behind_the_line_are_another_commands() -> None:
    assert wants_json(["launch", "--json", "--", "train"]) and not wants_json(["launch", "--", "train", "--json"])


def test_every_line_can_be_printed() -> None:
    assert one_line("a\n b\x1b[31m\x00") == "a b\\x1b[31m\\x00" and len(one_line("x" * 10_000)) < 2100


@pytest.mark.parametrize("error", [TypeError("odd"), RuntimeError("two\nlines"), AssertionError(), KeyError("k")])
def test_what_nobody_expected_is_a_line_too(
    error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: a command that raises. A traceback is shown to who asks for it."""

    def broken(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("samebits.checker.environment.environment", broken)
    monkeypatch.setattr("samebits.cli.app", broken)
    code, out, err = ran(capsys, "doctor", "--json")
    assert code == 3 and json.loads(out)["error"]["kind"] == "internal" and err.count("\n") == 1
    assert err.startswith(f"samebits: internal error: {type(error).__name__}: ")
    monkeypatch.setenv("SAMEBITS_TRACEBACK", "1")
    with pytest.raises(type(error)):
        main(("doctor",))


def make(kind: str, path: Path) -> None:
    """Something that is not a regular file, at a path."""
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as each:
            each.bind(str(path))
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    else:
        (path.parent / "elsewhere").write_text("kept\n")
        path.symlink_to(path.parent / "elsewhere")


ODD = ("a pipe", "a folder", "a socket", "a device", "a link")


@pytest.mark.parametrize("kind", ODD)
def test_a_log_that_is_no_plain_file(
    kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(TEXT)
    Path("out").mkdir()
    make(kind, Path("out/events.jsonl"))
    code, _, err = ran(capsys, "train", "run.yaml", "--out", "out", *SMALL)
    said = "is a link" if kind in ("a device", "a link") else f"is {kind}" if kind != "a socket" else "No such device"
    assert (
        code == 2 and err.splitlines()[-1].startswith("samebits: out/events.jsonl: ") and (said in err or kind in err)
    )
    assert sorted(each.name for each in Path("out").iterdir()) in (["events.jsonl"], ["elsewhere", "events.jsonl"])
    if kind == "a link":
        assert Path("out/elsewhere").read_text() == "kept\n"


@pytest.mark.parametrize("kind", ODD[:4])
@pytest.mark.parametrize(
    "words",
    [
        ("plan", "odd"),
        ("contract", "validate", "odd"),
        ("tokenizer", "show", "odd"),
        ("generate", "--model", "odd", "--prompt", "x"),
    ],
    ids=lambda words: words[0],
)
def test_what_is_read_is_a_plain_file(
    words: tuple[str, ...],
    kind: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    make(kind, Path("odd"))
    code, out, err = ran(capsys, *words)
    assert code == (1 if words[0] == "contract" else 2) and "Traceback" not in err
    assert out.count("\n") <= 3 if words[0] == "contract" else err.count("\n") == 1


@pytest.mark.parametrize("kind", ("a pipe", "a link"))
def test_what_is_written_is_a_plain_file(kind: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    make(kind, tmp_path / "graph.html")
    code, _, err = ran(capsys, "contract", "graph", "--format", "html", "--output", str(tmp_path / "graph.html"))
    assert code == 2 and f"graph.html: is {kind}; allowed: a plain file" in err
    assert not stat.S_ISREG((tmp_path / "graph.html").lstat().st_mode)


def test_every_command_was_asked() -> None:
    import typer

    names = set(typer.main.get_group(app).commands)
    asked = {
        "bench",
        "check",
        "reveal",
        "plan",
        "train",
        "rl",
        "generate",
        "serve",
        "contract",
        "tokenizer",
        "launch",
        "demo",
        "doctor",
        "sim",
        "debug",
        "profile",
        "diff",
        "distill",
        "merge",
        "prune",
        "quantize",
        "evaluate",
        "report",
    }
    assert names == asked


DEVICES = [
    ("train", "tiny", "--out", "x", "--set", "training.device={}"),
    ("distill", "distill_smollm2", "--out", "x", "--set", "training.device={}"),
    ("debug", "tiny", "--set", "training.device={}"),
    ("profile", "tiny", "--set", "training.device={}"),
    ("generate", "--model", "random:tiny", "--prompt", "x", "--device", "{}"),
    ("evaluate", "--model", "random:tiny", "--text", "README.md", "--device", "{}"),
]


@pytest.mark.parametrize("words", DEVICES, ids=lambda words: words[0])
@pytest.mark.parametrize("device", ["cuda", "cuda:7", "tpu"])
def test_a_device_that_is_not_there_is_refused(
    words: tuple[str, ...],
    device: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one line, with what is allowed, before anything is loaded or written. Without a GPU, and with seven."""
    (tmp_path / "README.md").write_text("x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0 if device == "cuda" else 7)
    code, out, err = ran(capsys, *(word.format(device) for word in words))
    assert code == 2 and not out and len(err.strip().splitlines()) == 1, err
    assert repr(device) in err and "allowed: cpu" in err
    assert [each.name for each in tmp_path.iterdir()] == ["README.md"]
