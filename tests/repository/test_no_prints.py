"""Library code says what it does through `samebits.trace`, logs and return values; it prints nothing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "samebits"
# Programs of their own, started as `python -m ...`, and what a person watches while a run goes on.
PRINT = {
    "checker/artifact_process.py",
    "checker/fresh_process.py",
    "checker/tracing/__main__.py",
    "native/build.py",
    "native/sources.py",
    "numerics/elementary/fit.py",
    "numerics/elementary/generate.py",
    "parallel/launching.py",
    "train/contracts/library_indices/child.py",
    "train/display.py",
}
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "cli")


def prints(source: str) -> list[int]:
    """Lines that print, or write to a standard stream."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            words = ast.unparse(node.func)
            if words in ("print", "sys.stdout.write", "sys.stderr.write", "pprint.pprint", "breakpoint"):
                found.append(node.lineno)
    return found


def test_nothing_is_printed() -> None:
    """prints(file) is empty, for every file outside cli/ that is no program."""
    names = {path: str(path.relative_to(PACKAGE)) for path in FILES}
    printing = {name: prints(path.read_text()) for path, name in names.items() if name not in PRINT}
    assert not {name: lines for name, lines in printing.items() if lines}
    assert {name for path, name in names.items() if prints(path.read_text())} >= PRINT, "a file here prints no more"


@pytest.mark.parametrize("source", ["print(1)", "def f():\n    sys.stderr.write('x')", "if True:\n    breakpoint()"])
def test_a_print_is_noticed(source: str) -> None:
    """Planted."""
    assert prints(source)
