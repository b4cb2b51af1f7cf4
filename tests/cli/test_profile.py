"""`samebits profile` on a run and on a script: what ran is in the tables and in the files; bad input is one line."""

from __future__ import annotations

import json
from pathlib import Path

from tests.train.small_run import TEXT
from typer.testing import CliRunner

from samebits.cli import app

SCRIPT = """
import sys, torch
from samebits import ops
assert sys.argv[1:] == ["7"]
ops.linear(torch.ones(3, 16), torch.ones(8, 16))
"""


def test_a_run_is_profiled(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(TEXT)
    told = CliRunner().invoke(app, ["profile", str(config), "--steps", "2", "--output", str(tmp_path / "traces")])
    assert told.exit_code == 0, told.output
    for word in ("step 2", "layers.1.mlp", "gemm_accumulate_", "optimizer", "trace.json"):
        assert word in told.output
    names = [each["name"] for each in json.loads((tmp_path / "traces" / "trace.json").read_text())["traceEvents"]]
    lines = [json.loads(line) for line in (tmp_path / "traces" / "trace.jsonl").read_text().splitlines()]
    assert sorted(names) == sorted(each["span"] for each in lines) and names.count("step 1") == 1


def test_a_script_is_profiled(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    told = CliRunner().invoke(app, ["profile", str(script), "7", "--json"])
    assert told.exit_code == 0, told.output
    document = json.loads(told.stdout)
    assert document["schema"] == "samebits.profile/1"
    assert [(row["name"], row["count"]) for row in document["rows"]] == [("gemm", 1)]


def test_a_script_that_is_not_there_is_refused(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["profile", str(tmp_path / "no.py")])
    assert "there is no such file; allowed: a Python script, a configuration or a recipe" in str(told.exception)
