"""Lists the planted kernels of `faulty/`: every public function of a file, and the operator that the file is about."""

from __future__ import annotations

import ast
from pathlib import Path

FOLDER = Path(__file__).parent / "faulty"
LIKE = {"logprob": "selected_logprob"}


def functions(file: Path) -> list[str]:
    """Names of the public functions of a file, which is not imported."""
    found = [node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)]
    return [name for name in found if not name.startswith("_")]


def faulty() -> list[tuple[str, str]]:
    """(./file.py:function, operator) of every planted fault."""
    files = [file for file in sorted(FOLDER.glob("*.py")) if file.stem != "sound"]
    return [(f"{file}:{name}", LIKE.get(file.stem, file.stem)) for file in files for name in functions(file)]


def sound() -> list[str]:
    """./file.py:function of every kernel that is sound; its name tells the operator."""
    return [f"{FOLDER / 'sound.py'}:{name}" for name in functions(FOLDER / "sound.py")]


def name(target: str) -> str:
    """For the list of tests: matmul-split_by_rows."""
    file, _, function = target.rpartition(":")
    return f"{Path(file).stem}-{function}"
