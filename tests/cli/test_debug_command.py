"""`samebits debug` on a run that is well, on one whose rate never peaks, and on one with a kernel that overflows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.trace.planted_bugs import QUICK, overflowing_gate
from tests.train.small_run import TEXT
from typer.testing import CliRunner

from samebits.cli import app


@pytest.fixture
def config(tmp_path: Path) -> list[str]:
    path = tmp_path / "run.yaml"
    path.write_text(TEXT)
    return ["debug", str(path), "--steps", "1", *(word for each in QUICK for word in ("--set", each))]


def test_a_run_that_is_well(config: list[str]) -> None:
    told = CliRunner().invoke(app, config)
    assert (told.exit_code, told.stdout) == (0, "nothing is wrong in 1 steps\n")


def test_what_is_wrong_is_said_in_a_line_and_the_exit_code(config: list[str]) -> None:
    told = CliRunner().invoke(app, [*config, "--set", "optimizer.warmup_steps=20"])
    assert told.exit_code == 1 and told.stdout.startswith("CFG-OB2: config optimizer.warmup_steps: warmup_steps is 20,")
    assert told.stdout.endswith("findings\n")


def test_as_a_document(config: list[str]) -> None:
    with overflowing_gate():
        told = CliRunner().invoke(app, [*config, "--json"])
    document = json.loads(told.stdout)
    assert (told.exit_code, document["schema"], document["rank"]) == (1, "samebits.debug/1", 0)
    (found,) = document["findings"]
    assert (found["granularity"], found["place"]) == ("kernel", "swiglu_backward in layers.0.mlp")
