"""Some steps of a run recorded as it goes: which ones, whole, without a bit of the run changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.train.small_run import small

from samebits import trace
from samebits.cli import main
from samebits.cli.run_page import render
from samebits.train import step_traces
from samebits.train.running import run
from samebits.train.step_traces import StepTraces, newest
from samebits.train.trainer import Trainer


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run of ten steps with every third recorded, and its digest."""
    folder = tmp_path_factory.mktemp("recorded")
    return folder, run(small(), folder, trace_steps=3).digest


def test_every_third_step_is_recorded_whole(recorded: tuple[Path, str]) -> None:
    folder, _ = recorded
    files = sorted((folder / step_traces.FOLDER).iterdir())
    assert [each.name for each in files] == [f"step_{step:08d}.jsonl" for step in (3, 6, 9)]
    for step, path in zip((3, 6, 9), files, strict=True):
        spans = [each for each in lines(path) if "span" in each]
        assert [each["span"] for each in spans if each["granularity"] == "step"] == [f"step {step}"]
        kinds = {each["granularity"] for each in spans}
        assert kinds == {"step", "block", "kernel"} and any("self_attn" in each["span"] for each in spans)
    assert newest(folder) == files[-1]


def test_recording_changes_no_bit(recorded: tuple[Path, str], tmp_path: Path) -> None:
    assert run(small(), tmp_path).digest == recorded[1]
    assert not (tmp_path / step_traces.FOLDER).exists() and newest(tmp_path) is None


def test_the_page_shows_the_last_recorded_step(recorded: tuple[Path, str], tmp_path: Path) -> None:
    assert "step 9: " in render(recorded[0]) and "gemm_accumulate_" in render(recorded[0])
    run(small(), tmp_path)
    assert "gemm_accumulate_" not in render(tmp_path)


def test_a_step_that_fails_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the second step breaks off."""
    whole = Trainer.step

    def breaks(self: Trainer) -> Any:
        found = whole(self)
        if found.step == 2:
            raise RuntimeError("planted")
        return found

    monkeypatch.setattr(Trainer, "step", breaks)
    with pytest.raises(RuntimeError, match="planted"):
        run(small(), tmp_path, trace_steps=1)
    kept = sorted(each.name for each in (tmp_path / step_traces.FOLDER).iterdir())
    assert kept == ["step_00000001.jsonl", "step_00000002.jsonl"]
    assert lines(tmp_path / step_traces.FOLDER / kept[-1])[-1]["error"] == "RuntimeError"


def test_what_cannot_be_recorded_is_refused_before_a_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="trace_steps is -1; allowed: 1 for every step"):
        StepTraces(tmp_path, -1)
    with (
        trace.recording(trace.Memory()),
        pytest.raises(ValueError, match="trace_steps is 2, and a recording is under way already; allowed: one"),
    ):
        run(small(), tmp_path / "out", trace_steps=2)
    with pytest.raises(SystemExit) as ended:
        main(["train", "tiny", "--out", str(tmp_path / "out"), "--trace-steps", "-1"])
    assert ended.value.code == 2 and "--trace-steps" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
