"""What must start at once loads nothing heavy: `import samebits`, `samebits --help` and the help of every command."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {
    "torch",
    "numpy",
    "triton",
    "transformers",
    "tokenizers",
    "safetensors",
    "hypothesis",
    "z3",
    "starlette",
    "uvicorn",
    "jinja2",
    "pyarrow",
    "samebits.ops",
    "samebits.checker",
    "samebits.model",
}
HELP = """
import contextlib, io
from samebits.cli import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main({words!r})
"""


def heavy_after(code: str) -> set[str]:
    whole = f"{code}\nimport sys\nprint(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=True)
    return HEAVY & set(ran.stdout.split())


def test_import_samebits_is_light() -> None:
    assert heavy_after("import samebits") == set()


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["check", "--help"], ["contract", "prove", "--help"]])
def test_help_is_light(words: list[str]) -> None:
    assert heavy_after(HELP.format(words=words)) == set()


def test_what_is_heavy_is_noticed() -> None:
    """Planted fault: an operator is named."""
    assert {"torch", "numpy", "samebits.ops"} <= heavy_after("import samebits as sb; sb.ops.matmul")


def test_names_are_there_before_they_are_loaded() -> None:
    code = """
import samebits as sb
assert {"ops", "check", "reveal", "invariant_mode", "__version__"} <= set(dir(sb))
from samebits import ops
assert sb.ops is ops and callable(sb.ops.matmul) and callable(sb.check)
try:
    sb.opps
except AttributeError as error:
    assert "has no attribute 'opps'; it has: check, invariant_mode, nn, ops, reveal" in str(error)
else:
    raise AssertionError("a wrong name was found")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
