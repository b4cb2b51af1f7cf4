"""`samebits sim run` and `samebits sim explore`: exit codes, documents, what is printed, runs that repeat elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from samebits.cli import main

SUMS = """
import sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.arange(5.0) + dist.get_rank()
for _ in range(3):
    dist.all_reduce(x)
print("sum", x[0].item(), *sys.argv[1:])
"""
RACES = """
import torch
import torch.distributed as dist

seen = []

def program(rank):
    if rank == 0:
        seen.clear()
    dist.init_process_group("gloo")
    dist.barrier()
    seen.append(rank)
    dist.barrier()
    x = torch.tensor([float(seen[0])])
    dist.all_reduce(x)
    return x

def fails(rank):
    dist.init_process_group("gloo")
    dist.barrier()
    if rank == 1:
        raise ArithmeticError("the sum is odd")
    dist.barrier()
"""

ROUND = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
dist.recv(torch.empty(3), (rank + 1) % ranks)
"""


@pytest.fixture
def sums(tmp_path: Path) -> str:
    (tmp_path / "sums.py").write_text(SUMS)
    return str(tmp_path / "sums.py")


@pytest.fixture
def races(tmp_path: Path) -> str:
    (tmp_path / "races.py").write_text(RACES)
    return str(tmp_path / "races.py")


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["sim", *words])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def document(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code, out, _ = said(capsys, *words, "--json")
    return code, json.loads(out)


def test_a_program_runs_as_it_would_on_processes(sums: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.modules["__main__"], list(sys.argv)
    code, out, _ = said(capsys, "run", sums, "--ranks", "3", "--", "--steps", "3")
    assert (sys.modules["__main__"], sys.argv) == before
    assert code == 0 and out.count("sum 27.0 --steps 3\n") == 3
    assert "on 3 ranks" in out and out.rstrip().endswith("holds")


def test_with_json_the_programs_words_go_to_stderr(sums: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = document(capsys, "run", sums, "--ranks", "2")
    assert code == 0 and found["verdict"] == "holds" and found["collectives"] == 6 and found["trace"] == "fifo"


def test_E1_a_seed_gives_the_same_run_in_another_process(sums: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", sums, "--ranks", "3", "--seed", "5", "--json"]
    there = subprocess.run([sys.executable, "-m", "samebits.cli", "sim", *words], capture_output=True, text=True)
    assert there.returncode == 0, there.stderr
    _, here = document(capsys, *words[:-1])
    same = ("trace", "hand_offs", "results", "simulated_seconds", "error")
    other = json.loads(there.stdout)
    assert [here[key] for key in same] == [other[key] for key in same] and here["trace"] != "fifo"


def test_a_failing_rank_is_code_1_with_its_error(races: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = document(capsys, "run", f"{races}:fails", "--ranks", "2")
    assert code == 1 and found["error"] == "rank 1: ArithmeticError: the sum is odd"
    code, out, _ = said(capsys, "run", f"{races}:program", "--ranks", "2", "--fault", "crash@1:2")
    assert code == 1 and "injected fault crash@1:2" in out


def test_E3_a_program_whose_bits_move_is_code_1_and_replays(races: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "explore", f"{races}:program", "--ranks", "3", "--seeds", "50")
    assert code == 1 and "races by itself" in out and "does not hold" in out
    code, found = document(capsys, "explore", f"{races}:program", "--ranks", "3", "--seeds", "50")
    trace = found["finding"]["smallest"]
    assert code == 1 and 1 <= len(trace.split()) <= 5
    plain = document(capsys, "run", f"{races}:program", "--ranks", "3")[1]["results"]
    assert document(capsys, "run", f"{races}:program", "--ranks", "3", "--trace", trace)[1]["results"] != plain


def test_a_program_whose_bits_stay_is_code_0(sums: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = document(capsys, "explore", sums, "--ranks", "3", "--seeds", "4", "--policy", "uniform,starve")
    assert code == 0 and (found["schedules"], found["distinct"], found["hashes"]) == (8, 8, 1)


CLOCK = """
import time, torch, torch.distributed as dist
def program(rank):
    dist.init_process_group("gloo")
    x = torch.tensor([time.monotonic_ns()])
    dist.all_reduce(x)
"""


def test_a_program_that_does_not_repeat_itself_cannot_be_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "clock.py"
    path.write_text(CLOCK)
    code, found = document(capsys, "explore", f"{path}:program", "--seeds", "5")
    assert code == 3 and found["verdict"] == "could not be judged" and found["finding"] is None
    assert found["unsteady"].startswith("the program does not repeat itself: FIFO, run twice: collective 1 of group")
    code, out, _ = said(capsys, "explore", f"{path}:program", "--seeds", "5")
    assert code == 3 and "does not repeat itself" in out and "races" not in out


def test_what_a_program_never_comes_to_is_told_and_shows_nothing(sums: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("--fault", "crash@1:999"), ("--trace", "999:1"), ("--trace", "1:99")):
        code, found = document(capsys, "run", sums, *words)
        assert (code, found["verdict"], found["error"]) == (3, "could not be judged", "") and len(found["missed"]) == 1
    code, out, _ = said(capsys, "explore", sums, "--seeds", "2", "--fault", "skip@0:9")
    assert code == 3 and "came to no such place: fault skip@0:9" in out
    assert document(capsys, "run", sums, "--fault", "late@1:1:0.5")[:1] == (0,)


def test_a_deadlock_of_all_ranks_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "round.py"
    path.write_text(ROUND)
    code, found = document(capsys, "run", str(path), "--ranks", "4")
    assert code == 1 and found["error"].startswith("ranks 0, 1, 2, 3: DeadlockError")
    assert found["error"].count("rank 2 waits for rank 3 in receive from rank 3") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def program(:", "SyntaxError"),
        ("raise RuntimeError('no GPU')", "RuntimeError: no GPU"),
        ("exit(0)", "SystemExit"),
    ],
)
def test_a_file_that_cannot_be_imported_is_one_line_and_code_2(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_program.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for target in (f"{tmp_path}/broken_program.py:program", "broken_program:program"):
        code, _, err = said(capsys, "run", target)
        assert code == 2 and message in err and "broken_program" in err and len(err.strip().splitlines()) == 1


def test_a_program_that_fails_by_itself_cannot_be_judged(races: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = document(capsys, "explore", f"{races}:fails", "--ranks", "2", "--seeds", "2")
    assert code == 3 and found["verdict"] == "could not be judged" and "ArithmeticError" in found["error"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "nowhere.py"), "nowhere.py is no file; allowed: a file.py"),
        (("run", "json:nothing"), "json:nothing is no function"),
        (("run", "no_such_module:f"), "module 'no_such_module' cannot be imported"),
        (("run", "words"), "program is 'words'; allowed"),
        (("run", "json:loads", "--seed", "1", "--trace", "1:1"), "--seed and --trace are both given"),
        (("run", "json:loads", "--trace", "x"), "a trace is 'x'"),
        (("run", "json:loads", "--fault", "burn"), "a fault is 'burn'"),
        (("run", "json:loads", "--seed", "1", "--policy", "best"), "policy is 'best'"),
        (("run", "json:loads", "--policy", "starve"), "--policy is 'starve' and there is no --seed"),
        (("run", "json:loads", "--fault", "crash@2:1"), "rank is 2; allowed: 0..1 of 2 ranks"),
        (("explore", "json:loads", "--policy", "uniform,best"), "policy is 'best'"),
        (("run", "json:loads", "--ranks", "0"), "--ranks"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = said(capsys, *words)
    assert code == 2 and message in err and len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("command", ["run", "explore"])
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, command, "--help")
    assert code == 0 and f"Example: samebits sim {command}" in " ".join(out.split()) and "--json" in out
