"""`samebits profile` on a run and on a script: what ran is in the tables and in the files; bad input is one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.train.small_run import TEXT
from typer.testing import CliRunner

from samebits.cli import app, main

SCRIPT = """
import sys, torch
from samebits import ops
assert sys.argv[1:] == ["7"]
ops.linear(torch.ones(3, 16), torch.ones(8, 16))
"""

# Ends as scripts do, beside a module of its own, and prints.
ENDING = """
import sys, torch
import beside
from samebits import ops

def main():
    ops.linear(torch.ones(3, 16), torch.ones(8, 16))
    print("printed")
    END

if __name__ == "__main__":
    sys.exit(main())
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


@pytest.mark.parametrize(
    ("end", "code", "said"), [("return 0", 0, ""), ("return 4", 4, ""), ("raise KeyError('key')", 1, "KeyError: 'key'")]
)
def test_a_script_is_profiled_however_it_ends(
    end: str, code: int, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "script.py").write_text(ENDING.replace("END", end))
    with pytest.raises(SystemExit) as ended:
        main(["profile", str(tmp_path / "script.py"), "--json"])
    out, err = capfd.readouterr()
    assert ended.value.code == code and "printed" in err and said in err and "profile.py" not in err
    assert [row["name"] for row in json.loads(out)["rows"]] == ["gemm"]


def test_what_is_wrong_with_the_subject_is_said_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "script.py").write_text("def f(:")
    (tmp_path / "run.yaml").write_text("no_such_key: 1")
    for name in ("script.py", "run.yaml", "nowhere.yaml", "nowhere.py"):
        with pytest.raises(SystemExit) as ended:
            main(["profile", str(tmp_path / name), "--output", str(tmp_path / "traces")])
        assert ended.value.code == 2 and len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (tmp_path / "traces").exists()


def test_a_script_that_is_not_there_is_refused(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["profile", str(tmp_path / "no.py")])
    assert "there is no such file; allowed: a Python script, a configuration or a recipe" in str(told.exception)


FORKING = """
import os, sys, torch
from samebits import ops
ops.linear(torch.ones(3, 16), torch.ones(8, 16))
if os.fork() == 0:
    END
print("waited for", os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [("sys.exit(3)", 3), ("raise KeyError", 1), ("os.wait = lambda: (0, 0)", 0)],
    ids=["exit", "error", "end"],
)
def test_a_process_that_a_script_forks_shows_no_profile_of_its_own(end: str, code: int, tmp_path: Path) -> None:
    """In a process of its own: the copy goes on wherever the script was called from."""
    script = tmp_path / "script.py"
    script.write_text(FORKING.replace("END", end))
    command = [sys.executable, "-m", "samebits.cli", "profile", str(script)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0 and told.stdout.count("gemm") == 1, told.stderr
    assert f"waited for {code}" in told.stdout


def test_a_script_that_is_interrupted_shows_what_was_recorded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "script.py").write_text(ENDING.replace("END", "raise KeyboardInterrupt"))
    with pytest.raises(SystemExit) as ended:
        main(["profile", str(tmp_path / "script.py"), "--json"])
    assert ended.value.code == 130
    assert [row["name"] for row in json.loads(capfd.readouterr().out)["rows"]] == ["gemm"]


def test_names_of_spans_move_no_cursor(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "from samebits import trace\nwith trace.span('[red]\\x1b[2J[/nope]\\nsecond', bytes='many'): pass\n"
    )
    told = CliRunner().invoke(app, ["profile", str(tmp_path / "script.py")])
    assert told.exit_code == 0 and r"[red]\x1b[2J[/nope]\nsecond" in told.output and "\x1b" not in told.output


def test_a_trace_that_cannot_be_written_is_refused_before_the_script_runs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "script.py").write_text("print('ran')")
    (tmp_path / "traces" / "trace.json").mkdir(parents=True)
    with pytest.raises(SystemExit) as ended:
        main(["profile", str(tmp_path / "script.py"), "--output", str(tmp_path / "traces")])
    out, err = capfd.readouterr()
    assert ended.value.code == 2 and "trace.json: is a folder; allowed: a plain file" in err and "ran" not in out
