"""`samebits distill` as a user has it: planned, run, killed, resumed, exported; refused in one line before a step."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tests.train.small_distill import SHAPE, SHORT, small, text
from torch import Tensor

from samebits.cli import main
from samebits.model import Model
from samebits.model.huggingface import save_folder
from samebits.model.loading import load
from samebits.model.tokenizer import Tokenizer
from samebits.post.folder import MANIFEST
from samebits.post.source import weights_digest
from samebits.train import checkpoint, events
from samebits.train.exporting import export
from samebits.train.running import run
from samebits.train.teacher_store import STORE

Command = Callable[..., tuple[int, str, str]]
SETTINGS = [word for setting in SHORT for word in ("--set", setting)]


@pytest.fixture
def distill(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """distill(...): exit code, stdout, stderr; the small configuration is in run.yaml."""
    (tmp_path / "run.yaml").write_text(text())

    def command(*words: str, name: str = "distill") -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([name, str(tmp_path / "run.yaml"), *SETTINGS, *words])
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return command


def test_a_plan_writes_nothing(distill: Command, tmp_path: Path) -> None:
    kept = ("--set", f"distillation.teacher_logits={tmp_path / 'kept'}", "--set", "distillation.top_k=200")
    code, out, _ = distill("--dry-run", "--json", *kept)
    found = json.loads(out)
    assert code == 0 and found["schema"] == "samebits.distill/1" and found["dry_run"] and found["run"]["steps"] == 4
    assert found["teacher"]["missing"]["sequences"] == 32 and found["teacher"]["form"]["top_k"] == 200
    code, out, _ = distill("--dry-run", *kept)
    assert code == 0 and "32 sequences missing" in out and "the 200 largest and the remainder, float32" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.yaml"]
    code, out, _ = distill("--dry-run", "--set", "optimizer.warmup_steps=9")
    assert code == 1 and "refused CFG-OB3" in out


def test_a_run_its_end_and_its_export(distill: Command, tmp_path: Path) -> None:
    """Filled, trained, exported, resumed with nothing left to do; the plan then misses nothing."""
    kept = ("--set", f"distillation.teacher_logits={tmp_path / 'kept'}")
    code, out, err = distill("--out", str(tmp_path / "out"), *kept, "--export", str(tmp_path / "student"), "--json")
    found = json.loads(out)
    assert code == 0 and found["digest"] == checkpoint.read(tmp_path / "out").digest and found["teacher"]["exact"]
    assert found["teacher"]["missing"]["sequences"] == 0 and (tmp_path / "kept" / STORE).is_file()
    assert "teacher logits: shard 1 of 1, 32 sequences" in err and "step 4/4  loss" in err
    start = events.read(tmp_path / "out")[0]["settings"]
    assert start["distillation.temperature"] == 2.0 and start["distillation.teacher"] == found["teacher"]["digest"]
    assert load(str(tmp_path / "student")).model.config.vocab_size == SHAPE.vocab_size
    is_described(tmp_path / "student", found)
    code, out, err = distill("--out", str(tmp_path / "out"))
    assert code == 2 and "holds checkpoints up to step 4; allowed: --resume, or another folder" in err
    code, out, _ = distill("--out", str(tmp_path / "out"), "--resume")
    assert code == 0 and "4 steps, from step 4" in out and "computed at every step" in out


def is_described(student: Path, told: dict[str, Any]) -> None:
    """The card and the manifest name the student, its file, the teacher and the checkpoint by their digests."""
    manifest, page = json.loads((student / MANIFEST).read_text()), (student / "README.md").read_text()
    weights = load_file(student / "model.safetensors")
    file = hashlib.sha256((student / "model.safetensors").read_bytes()).hexdigest()
    assert manifest["digest"] == weights_digest(weights) and manifest["files"]["model.safetensors"]["sha256"] == file
    assert manifest["tensors"].keys() == weights.keys() and manifest["command"] == "distill"
    assert manifest["settings"]["checkpoint"] == told["digest"] and told["teacher"]["model"] in manifest["sources"]
    digests = (manifest["digest"], f"sha256:{file}", told["digest"], told["teacher"]["digest"])
    assert all(digest in page for digest in digests) and page.startswith("---\nlibrary_name: transformers\n")


def test_a_card_that_cannot_be_written_leaves_no_folder(tmp_path: Path) -> None:
    """Planted fault: what describes the model fails once its weights are there."""
    config = small("training.max_steps=2")
    run(config, tmp_path / "out")
    seen = []

    def failing(folder: Path, weights: Mapping[str, Tensor]) -> Mapping[str, bytes]:
        seen.append((folder / "model.safetensors").is_file())
        raise OSError(errno.ENOSPC, "no space left", str(folder / "README.md"))

    with pytest.raises(OSError, match="no space left"):
        export(config, tmp_path / "out", tmp_path / "student", failing)
    assert seen == [True] and [path.name for path in tmp_path.iterdir()] == ["out"]


ERRORS = {
    "no folder": ((), "distill: --out is missing; allowed: a folder for checkpoints, or --dry-run"),
    "alpha": (("distillation.alpha=1.5",), "--set distillation.alpha: is 1.5; allowed: 0 to 1"),
    "temperature": (("distillation.temperature=0.0",), "distillation.temperature: is 0.0; allowed: 2^-20 to 2^20"),
    "unknown key": (("distillation.lmbda=0.5",), "unknown key 'lmbda'; allowed: alpha, logits_dtype"),
    "top_k of nothing": (("distillation.top_k=4",), "is of logits that are kept; allowed: with teacher_logits"),
    "logits_dtype": (("distillation.logits_dtype=int8",), "is 'int8'; allowed: float32, bfloat16"),
    "vocabulary": (
        ("model.overrides.vocab_size=288",),
        "distill: vocab_size is 288 in the student, 272 in the teacher; they must agree",
    ),
    "positions": (
        ("data.max_length=144",),
        "distill: data.max_length is 144, the teacher has 128 positions; allowed: no more than those",
    ),
    "no teacher": (("distillation.teacher_model_name_or_path=nowhere",), "no model at 'nowhere'; allowed: a folder"),
    "taken": (("distillation.teacher_logits=.",), "distillation.teacher_logits: . holds something else; allowed"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_cannot_be_is_one_line(
    name: str, distill: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings, said = ERRORS[name]
    given = [word for setting in settings for word in ("--set", setting)]
    code, out, err = distill(*([] if name == "no folder" else ["--out", "out"]), *given)
    assert code == 2 and said in err and err.count("\n") == 1 and not out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.yaml"]


def test_another_tokenizer_is_refused(distill: Command, tmp_path: Path) -> None:
    """As many words, in another order."""
    words = Tokenizer.of_bytes()
    named = dict(words.parts.words)
    first, second = list(named)[40:42]
    named[first], named[second] = named[second], named[first]
    other = type(words)(parts=type(words.parts)(**{**_fields(words.parts), "words": named}), eos=words.eos)
    save_folder(Model.new(SHAPE, 1), tmp_path / "other", other)
    code, _, err = distill(
        "--out",
        str(tmp_path / "out"),
        "--set",
        f"distillation.teacher_model_name_or_path={tmp_path / 'other'}",
        "--set",
        "data.tokenizer=bytes",
    )
    assert code == 2 and "distill: data.tokenizer has 257 tokens (" in err and "they must be the same" in err


def _fields(parts: object) -> dict[str, object]:
    return {name: getattr(parts, name) for name in parts.__dataclass_fields__}  # type: ignore[attr-defined]


def test_train_does_not_read_the_section(distill: Command, tmp_path: Path) -> None:
    code, _, err = distill("--out", str(tmp_path / "out"), name="train")
    assert code == 2 and "unknown key 'distillation'" in err


def test_a_teacher_too_large_for_memory_is_refused(distill: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samebits.train.assessment._memory_here", lambda device: 10_000_000)
    code, _, err = distill("--dry-run", "--set", "training.micro_batch_size=64", "--set", "data.max_train_samples=30")
    assert code == 2 and "bytes are needed, 10,000,000 are here; the teacher takes" in err


def process(folder: Path, out: Path, kept: Path) -> list[str]:
    settings = ("training.save_steps=1", f"distillation.teacher_logits={kept}", "distillation.top_k=271")
    words = [word for setting in settings for word in ("--set", setting)]
    config = str(folder / "run.yaml")
    return [sys.executable, "-m", "samebits.cli", "distill", config, "--out", str(out), *SETTINGS, *words, "--resume"]


def killed_when(words: list[str], there: Callable[[], bool]) -> None:
    """Starts a run and kills it once something is there, unless it has ended before."""
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as started:
        while not there() and started.poll() is None:
            time.sleep(0.002)
        if started.poll() is None:
            os.kill(started.pid, signal.SIGKILL)


@pytest.mark.long
def test_killed_while_keeping_and_while_training(tmp_path: Path) -> None:
    """SIGKILL when the first file of the store appears, and in the middle of the steps; then to the same end."""
    (tmp_path / "run.yaml").write_text(text())
    whole, cut, kept = tmp_path / "whole", tmp_path / "cut", tmp_path / "kept"
    subprocess.run(process(tmp_path, whole, tmp_path / "kept_whole"), check=True, capture_output=True)
    killed_when(process(tmp_path, cut, kept), lambda: (kept / STORE).exists())
    killed_when(process(tmp_path, cut, kept), lambda: cut.is_dir() and bool(checkpoint.committed(cut)))
    subprocess.run(process(tmp_path, cut, kept), check=True, capture_output=True)
    assert checkpoint.read(cut).digest == checkpoint.read(whole).digest
    both = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in (kept, tmp_path / "kept_whole")]
    assert both[0] == both[1]


def test_the_recipe_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The shipped one, two updates of one sequence each, with SmolLM2's largest logits kept."""
    smaller = ("training.max_steps=2", "training.micro_batch_size=1", "data.max_train_samples=1", "data.max_length=16")
    warm = ("optimizer.warmup_steps=1", f"distillation.teacher_logits={tmp_path / 'kept'}", "distillation.top_k=4096")
    words = [word for setting in (*smaller, *warm) for word in ("--set", setting)]
    with pytest.raises(SystemExit) as ended:
        main(["distill", "distill_smollm2", "--out", str(tmp_path / "out"), *words, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert not ended.value.code and found["steps"] == 2 and found["teacher"]["parameters"] == 134_515_008
    assert 0.0 < found["teacher"]["held"]["largest_error"] <= 1e-4
