"""An operator arrives as one folder: every standard check runs on a toy that a copy of the package was given.

The copy is built and used as any source tree is. Other operators' C++ is left out of it, so that the build is short."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[2]
TOY = Path(__file__).parent / "toy"
NAME = "halved_product"
STANDARD = {"repeat", "batch", "padding", "chunk", "tile", "accuracy"}


def _without_kernels(folder: str, names: list[str]) -> list[str]:
    of_an_operator = Path(folder).parent == PROJECT / "src" / "samebits" / "ops"
    return [name for name in names if name == "__pycache__" or (of_an_operator and name.endswith(".cpp"))]


def _run(tree: Path, *command: str) -> str:
    """A command of the copy's own package: the interpreter below the virtual environment knows no installed one."""
    path = os.pathsep.join([str(tree / "src"), sysconfig.get_paths()["purelib"]])
    environment = {**os.environ, "PYTHONPATH": path, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    python = getattr(sys, "_base_executable", sys.executable)
    done = subprocess.run(
        [python, *command], capture_output=True, text=True, check=False, cwd=tree, env=environment, timeout=900
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package's tree with one folder more, and its native library."""
    top = tmp_path_factory.mktemp("tree")
    shutil.copytree(PROJECT / "src", top / "src", ignore=_without_kernels)
    for name in ("CMakeLists.txt", "pyproject.toml"):
        shutil.copy2(PROJECT / name, top / name)
    shutil.copytree(TOY / NAME, top / "src" / "samebits" / "ops" / NAME)
    _run(top, "-m", "samebits.native.build")
    return top


@pytest.fixture(scope="module")
def found(tree: Path) -> dict[str, Any]:
    """What every standard check says of the toy, from one process in the copy."""
    answer: dict[str, Any] = json.loads(_run(tree, str(TOY / "checks.py"), NAME))
    assert Path(answer["package"]).is_relative_to(tree)
    return answer


def test_nothing_outside_its_folder_was_edited(tree: Path) -> None:
    """The copy is the package, but for one folder and what was built."""

    def compared(here: filecmp.dircmp[str]) -> tuple[list[str], list[str]]:
        more, other = list(here.right_only), list(here.diff_files)
        for each in here.subdirs.values():
            inner = compared(each)
            more, other = more + inner[0], other + inner[1]
        return more, other

    ours = PROJECT / "src" / "samebits"
    more, other = compared(filecmp.dircmp(ours, tree / "src" / "samebits", ignore=["__pycache__", "libsamebits.so"]))
    assert (more, other) == ([NAME], [])


def test_its_contract_is_valid_and_names_what_exists(found: dict[str, Any]) -> None:
    assert found["problems"] == []


def test_torch_accepts_it(found: dict[str, Any]) -> None:
    """Schema, fake, autograd, ahead-of-time dispatch, forward and backward; and DTensor has its rules."""
    registration = found["registration"]
    for each in ("forward", "backward"):
        assert len(registration[each]) >= 4 and set(registration[each].values()) == {"SUCCESS"}
    assert registration["cut"] == [NAME, f"{NAME}_backward"]


def test_the_backend_asked_for_runs(found: dict[str, Any]) -> None:
    """The C++ functions by their derived signature, with the reference's bits; others are refused in one line."""
    backends = found["backends"]
    assert backends["differing"] == []
    assert backends["ran"] == [f"{NAME}_backward", f"{NAME}_forward"]
    on_cpu, unknown = backends["refused"]
    assert on_cpu == f"{NAME}: backend='triton' takes tensors on 'cuda', got one on 'cpu'"
    assert unknown.startswith(f"{NAME}: unknown backend='cublas'; allowed: ")


def test_the_standard_promises_hold_and_catch_their_faults(found: dict[str, Any]) -> None:
    """Promises that one line of its contract names, its own obligations beside them."""
    judged = found["judged"]
    assert judged.keys() == STANDARD | {"commutes", "leaves_its_inputs_alone"}
    for promise, (verdict, caught, planted, detail) in judged.items():
        assert verdict == "holds" and caught == planted >= 1, f"{promise}: {detail}"


@pytest.mark.parametrize("kind", ["dag", "artifact"])
def test_it_is_proved_by_kind(kind: str, found: dict[str, Any]) -> None:
    """Its kernels as expressions, and as compiled code, without a GPU and without code of its own."""
    holds, words = found["proved"][kind]
    assert holds, words
