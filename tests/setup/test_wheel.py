"""The wheel in a clean environment: every command starts, finds what was shipped, and says what is missing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from http.client import HTTPConnection
from importlib.metadata import distribution
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.setup.clean_environment import Environment, build_wheel, make, wanted

import samebits
from samebits.ops.contracts import host_launch
from samebits.records.shipped import FOLDERS, shipped

UNDECLARED = ("hypothesis", "pytest", "mypy", "z3", "triton", "starlette", "uvicorn", "transformers", "pyarrow", "gguf")
# Every command's help in one process; a command that does not start is named.
ALL_HELP = """
import contextlib, io, typer
from samebits.cli import app, main
def paths(group, before):
    for name, command in group.commands.items():
        yield [*before, name]
        yield from paths(command, [*before, name]) if hasattr(command, "commands") else ()
for path in paths(typer.main.get_group(app), []):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            main([*path, "--help"])
        except SystemExit as ended:
            code = ended.code
    print(*path, code, "Usage: samebits " + " ".join(path) in said.getvalue(), sep=" ")
"""


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("wheel")
    return make(folder / "environment", build_wheel(folder))


def test_only_what_is_declared_can_be_imported(clean: Environment, tmp_path: Path) -> None:
    """The environment is what it says: samebits lies in it, and what is not declared is nowhere.

    torch as the index has it, built for CUDA, asks for triton; built for a CPU it does not."""
    brought = {need.name for need in wanted(distribution("torch"), frozenset())}
    undeclared = [name for name in UNDECLARED if name not in brought]
    code = f"""
from importlib.util import find_spec
import samebits
print(samebits.__file__)
print(*(name for name in {undeclared!r} if find_spec(name)))"""
    done = subprocess.run(
        [clean.python, "-c", code], cwd=tmp_path, env=clean.variables(), text=True, capture_output=True, check=True
    )
    place, found = done.stdout.splitlines()
    assert Path(place).is_relative_to(clean.folder) and found == ""


def test_version_and_the_help_of_every_command(clean: Environment, tmp_path: Path) -> None:
    ran = clean.run("--version", where=tmp_path)
    assert (ran.code, ran.out, ran.err) == (0, f"samebits {samebits.__version__}\n", "")
    done = subprocess.run(
        [clean.python, "-c", ALL_HELP], cwd=tmp_path, env=clean.variables(), text=True, capture_output=True, check=False
    )
    lines = [line.rsplit(" ", 2) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert {"check", "demo", "doctor", "serve", "train", "contract prove", "tokenizer show"} <= {
        one[0] for one in lines
    }
    assert [one for one in lines if one[1:] != ["0", "True"]] == []


def test_doctor_names_the_line_for_each_missing_package(clean: Environment, tmp_path: Path) -> None:
    ran = clean.run("doctor", "--json", where=tmp_path)
    found = json.loads(ran.out)
    assert ran.code == 0 and found["backends"]["cpu"]["runs"] and found["machine"]["used from"] == "a wheel"
    lines = {name: each["install"] for name, each in found["packages"].items()}
    assert lines["z3"] == "pip install samebits[contracts]" and lines["uvicorn"] == "pip install samebits[serve]"


def test_check_and_plan_of_a_shipped_recipe(clean: Environment, tmp_path: Path) -> None:
    ran = clean.run(
        "check",
        "matmul",
        "--backend",
        "cpu",
        "--promise",
        "batch",
        "--shape",
        "8x64x64",
        "--recipe",
        "normal",
        "--seed",
        "1",
        where=tmp_path,
    )
    assert ran.code == 0 and "does not hold" not in ran.out and "holds: " in ran.out
    ran = clean.run("plan", "tiny", "--json", where=tmp_path)
    found = json.loads(ran.out)
    assert ran.code == 0 and found["allowed"] and Path(found["config"]).is_relative_to(clean.folder)


def test_contract_status_reads_the_shipped_receipts_as_in_the_checkout(clean: Environment, tmp_path: Path) -> None:
    """The same levels, so that sources, contracts and receipts in the wheel are those of the checkout."""
    ran = clean.run("contract", "status", "softmax", "gelu", "--json", where=tmp_path)
    here = subprocess.run(
        [sys.executable, "-m", "samebits.cli", "contract", "status", "softmax", "gelu", "--json"],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        check=False,
    )
    assert (ran.code, ran.err) == (here.returncode, "")
    # Which packages lie beside the two differs, and with it what counts as fresh; what counts at all does not.
    told = [
        {name: (each["levels"], each["obligations"], each["outdated"]) for name, each in json.loads(text).items()}
        for text in (ran.out, here.stdout)
    ]
    assert told[0] == told[1]
    # Read, whether they still speak or their sources have changed since.
    softmax = json.loads(ran.out)["softmax"]
    assert softmax["receipts"] or softmax["outdated"]


def test_what_only_proving_needs_is_one_line(clean: Environment, tmp_path: Path) -> None:
    ran = clean.run("contract", "prove", "gelu", where=tmp_path)
    assert ran.code == 2 and ran.err.count("\n") == 1 and "; pass --receipts FOLDER" in ran.err
    ran = clean.run(
        "contract", "prove", "gelu", "--level", "1", "--all", "--receipts", "mine", "--json", where=tmp_path
    )
    (error,) = json.loads(ran.out)["errors"]
    assert ran.code == 3 and not (tmp_path / "mine").exists()
    assert error.endswith("level 1 needs the package 'mypy', which is not installed; pip install samebits[contracts]")


def test_serve_without_its_extra_is_one_line(clean: Environment, tmp_path: Path) -> None:
    ran = clean.run("serve", "--model", "tiny@0", where=tmp_path)
    said = "serve needs the package 'starlette', which is not installed; pip install samebits[serve]"
    assert (ran.code, ran.out, ran.err) == (3, "", f"samebits: {said}\n")


def test_serve_with_its_extra_answers(clean: Environment, tmp_path: Path) -> None:
    command = [str(clean.folder / "bin" / "samebits"), "serve", "--model", "tiny@0", "--port", "0", "--json"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=clean.variables(clean.extra("serve")),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            assert line, server.stderr.read() if server.stderr else ""
            place = urlsplit(json.loads(line)["address"])
            asked = HTTPConnection(place.hostname or "", place.port, timeout=60)
            asked.request("GET", "/health")
            assert asked.getresponse().status == 200
            asked.close()
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)
    assert server.returncode == 0


def test_what_is_built_when_it_is_needed_is_shipped(clean: Environment) -> None:
    """C++ of calls on a GPU, which is not compiled into the library."""
    here = {file.name for file in host_launch.FOLDER.glob("*.?pp")}
    code = "from samebits.ops.contracts.host_launch import FOLDER; print(*(each.name for each in FOLDER.glob('*.?pp')))"
    done = subprocess.run(
        [clean.python, "-c", code], cwd=clean.folder, env=clean.variables(), text=True, capture_output=True, check=True
    )
    assert set(done.stdout.split()) == here and {"host_launch.cpp", "reading.hpp"} <= here


def test_every_shipped_folder_is_found_here() -> None:
    for folder in FOLDERS:
        assert any(shipped(folder).rglob("*.*"))
    with pytest.raises(ValueError, match=r"no folder 'benchmarks' comes with samebits; allowed: goldens, receipts"):
        shipped("benchmarks")
